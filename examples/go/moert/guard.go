package moert

import "sync"

// guard counts the calls on a handle that goroutines share, so that nobody frees it under one.
type guard struct {
	mutex  sync.Mutex
	calls  int
	closed bool
	free   func() // set by close while calls are under way
}

// enter is false once close was called; else leave has to follow.
func (g *guard) enter() bool {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if !g.closed {
		g.calls++
	}
	return !g.closed
}

func (g *guard) leave() {
	g.mutex.Lock()
	g.calls--
	free := g.free
	last := g.calls == 0
	g.mutex.Unlock()
	if last && free != nil {
		free()
	}
}

func (g *guard) isClosed() bool {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.closed
}

// close has free called when no call is under way: now, or as the last one leaves. False: it was
// closed before.
func (g *guard) close(free func()) bool {
	g.mutex.Lock()
	first := !g.closed
	g.closed = true
	now := first && g.calls == 0
	if first && !now {
		g.free = free
	}
	g.mutex.Unlock()
	if now {
		free()
	}
	return first
}
