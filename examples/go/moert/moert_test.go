package moert

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const hidden = 64

type testWeights struct {
	broken int32 // atomic
	slow   time.Duration
}

func (w *testWeights) Read(r Read, dst []float32) error {
	if atomic.LoadInt32(&w.broken) != 0 && r.Part == GateProj {
		if r.Expert%2 == 0 {
			panic("a host's bug")
		}
		return fmt.Errorf("expert %d is gone", r.Expert)
	}
	if r.Part == GateProj {
		time.Sleep(w.slow)
	}
	for i := range dst {
		n := (uint32(r.FirstRow*r.Cols)+uint32(i))*2654435761 + uint32(r.Expert)*97 + uint32(r.Layer)*31 + uint32(r.Part)
		dst[i] = float32((n>>7)%2001)/8000 - 0.125
	}
	return nil
}

func newEngine(t *testing.T, w *testWeights, options Options) *Engine {
	t.Helper()
	layers := []LayerSpec{
		{ModelLayer: 0, NumExperts: 8, TopK: 2, Hidden: hidden, Intermediate: 48},
		{ModelLayer: 1, NumExperts: 8, TopK: 2, Hidden: hidden, Intermediate: 48}}
	source, err := NewSource("w", layers, w)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	engine, err := NewEngine(source, options)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func input(rows, seed int) []float32 {
	x := make([]float32, rows*hidden)
	for i := range x {
		x[i] = float32((i*37+seed*101)%199)/99 - 1
	}
	return x
}

func TestErrorsAndPanicsOfAHost(t *testing.T) {
	w := &testWeights{}
	engine := newEngine(t, w, Options{})
	defer engine.Close()
	atomic.StoreInt32(&w.broken, 1)
	x, y := input(1, 1), make([]float32, hidden)
	step, _ := engine.Begin(Decode, 1)
	err := step.Forward(context.Background(), 0, x, y)
	if err == nil || !(strings.Contains(err.Error(), "is gone") || strings.Contains(err.Error(), "panicked")) {
		t.Fatal(err)
	}
	if step.End() == nil {
		t.Fatal("the step kept its error for itself")
	}
	atomic.StoreInt32(&w.broken, 0)
	step, _ = engine.Begin(Decode, 1)
	if err := step.Forward(context.Background(), 0, x, y); err != nil {
		t.Fatal(err)
	}
	if err := step.End(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSource("none", nil, w); err == nil {
		t.Fatal("a model with no layers")
	}
}

func TestContextCancelsAStep(t *testing.T) {
	engine := newEngine(t, &testWeights{slow: 30 * time.Millisecond}, Options{BudgetFraction: 0.125})
	defer engine.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	step, err := engine.Begin(Prefill, 64)
	if err != nil {
		t.Fatal(err)
	}
	x, y := input(64, 1), make([]float32, 64*hidden)
	if err := step.Forward(ctx, 0, x, y); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	var cancelled *Error
	if err := step.End(); !errors.As(err, &cancelled) || cancelled.Code != Cancelled {
		t.Fatal(err)
	}
	step, _ = engine.Begin(Decode, 1)
	if err := step.Forward(context.Background(), 0, x[:hidden], y[:hidden]); err != nil {
		t.Fatal(err)
	}
	step.End()
}

type newest struct{ observed, asked, ranked int }

func (n *newest) Observe(layer int, counts []int32) { n.observed++ }
func (n *newest) Victim(candidates []Candidate, forPrefetch bool) int {
	n.asked++
	best := 0
	for i, c := range candidates {
		if c.LastUsed > candidates[best].LastUsed {
			best = i
		}
	}
	return best
}
func (n *newest) Rank(targetLayer int, counts []int32) []int32 { n.ranked++; return []int32{0, 1} }

func TestPoliciesDecide(t *testing.T) {
	run := func(options Options) ([]float32, Stats) {
		engine := newEngine(t, &testWeights{}, options)
		defer engine.Close()
		var all []float32
		for s := 0; s < 20; s++ {
			step, _ := engine.Begin(Decode, 1)
			for layer := 0; layer < engine.Layers(); layer++ {
				y := make([]float32, hidden)
				if err := step.Forward(context.Background(), layer, input(1, s), y); err != nil {
					t.Fatal(err)
				}
				all = append(all, y...)
			}
			step.End()
		}
		stats, _ := engine.Stats()
		return all, stats
	}
	plain, _ := run(Options{BudgetFraction: 0.5, VirtualClock: true})
	policies := &newest{}
	mine, stats := run(Options{BudgetFraction: 0.5, VirtualClock: true, Policies: policies})
	for i := range plain {
		if plain[i] != mine[i] {
			t.Fatal("an exact strategy changed its output")
		}
	}
	if policies.observed != 40 || policies.ranked != 40 || policies.asked == 0 {
		t.Fatal(*policies)
	}
	if stats.PolicyFallbacks != 0 || stats.PrefetchIssued == 0 {
		t.Fatal(stats)
	}
}

// 64 goroutines on one engine; every error reaches its own caller. MOERT_SOAK_SECONDS lengthens it.
func TestManyGoroutines(t *testing.T) {
	seconds, err := strconv.ParseFloat(os.Getenv("MOERT_SOAK_SECONDS"), 64)
	if err != nil {
		seconds = 1
	}
	engine := newEngine(t, &testWeights{}, Options{BudgetFraction: 0.25})
	defer engine.Close()
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var wg sync.WaitGroup
	for id := 0; id < 64; id++ {
		wg.Add(1)
		go func(id int) {
			defer wg.Done()
			x, y, first := input(1, id), make([]float32, hidden), []float32(nil)
			for time.Now().Before(end) {
				_, err := engine.Begin(Decode, 100000+id)
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("of %d rows", 100000+id)) {
					t.Errorf("goroutine %d got %v", id, err)
					return
				}
				step, err := engine.Begin(Decode, 1)
				if err == nil {
					err = step.Forward(context.Background(), id%2, x, y)
				}
				if err == nil {
					err = step.End()
				}
				if err != nil {
					t.Error(err)
					return
				}
				if first == nil {
					first = append(first, y...)
				}
				for i := range y {
					if y[i] != first[i] {
						t.Error("the same input, another output")
						return
					}
				}
			}
		}(id)
	}
	wg.Wait()
}
