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

	"moert.dev/go/internal/cheap"
)

const goroutines = 64

// One expert a goroutine; every third read of one fails and says whose it is.
type faulty struct{ reads [goroutines]int64 }

func (f *faulty) Read(r Read, dst []float32) error {
	if r.Part == GateProj && r.FirstRow == 0 && atomic.AddInt64(&f.reads[r.Expert], 1)%3 == 0 {
		return fmt.Errorf("expert <%d> is gone", r.Expert)
	}
	return (&testWeights{}).Read(r, dst)
}

type tally struct{ answered, failedReads, refused, cancelled int64 }

func hammer(engine *Engine, id int, end time.Time, t *tally) error {
	x, y, first := input(1, id), make([]float32, hidden), [2][]float32{}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for round := id; time.Now().Before(end); round++ {
		var refused *Error
		if round%4 == 0 {
			_, err := engine.Begin(Decode, 100000+id)
			if !errors.As(err, &refused) || refused.Code != InvalidArgument ||
				!strings.Contains(err.Error(), fmt.Sprintf("of %d rows", 100000+id)) {
				return fmt.Errorf("goroutine %d got %v", id, err)
			}
			atomic.AddInt64(&t.refused, 1)
			continue
		}
		step, err := engine.Begin(Decode, 1)
		if err != nil {
			return err
		}
		ctx, layer := context.Background(), round%2
		if round%4 == 1 {
			if ctx = ended; round%8 == 1 { // by the context, or by the step's own call
				ctx = context.Background()
				step.Cancel()
			}
		}
		// Its own expert: an error of a read can only be this goroutine's.
		used, err := step.ForwardRouted(ctx, layer, x, []int32{int32(id)}, []float32{1}, y)
		last := step.End()
		switch {
		case round%4 == 1:
			if !errors.Is(err, context.Canceled) && !(errors.As(err, &refused) && refused.Code == Cancelled) {
				return fmt.Errorf("a cancelled step of goroutine %d: %v", id, err)
			}
			atomic.AddInt64(&t.cancelled, 1)
		case err != nil:
			if !errors.As(err, &refused) || refused.Code != DataLoss ||
				!strings.Contains(err.Error(), fmt.Sprintf("expert <%d> is gone", id)) {
				return fmt.Errorf("goroutine %d got %v", id, err)
			}
			if last == nil || !strings.Contains(last.Error(), refused.Message) {
				return fmt.Errorf("its step says %v", last)
			}
			atomic.AddInt64(&t.failedReads, 1)
		default:
			if last != nil || used[0] != int32(id) {
				return fmt.Errorf("goroutine %d: %v, %v", id, used, last)
			}
			if first[layer] == nil {
				first[layer] = append(first[layer], y...)
			}
			for i := range y {
				if y[i] != first[layer][i] {
					return errors.New("the same input, another output")
				}
			}
			atomic.AddInt64(&t.answered, 1)
		}
	}
	return nil
}

// 64 goroutines on one engine with errors injected: each error reaches the goroutine that caused it,
// and nothing leaks. MOERT_SOAK_SECONDS lengthens it.
func TestManyGoroutines(t *testing.T) {
	seconds, err := strconv.ParseFloat(os.Getenv("MOERT_SOAK_SECONDS"), 64)
	if err != nil {
		seconds = 2
	}
	layers := make([]LayerSpec, 2)
	for l := range layers {
		layers[l] = LayerSpec{ModelLayer: l, NumExperts: goroutines, TopK: 1, Hidden: hidden, Intermediate: 48}
	}
	source, err := NewSource("w", layers, &faulty{})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := NewEngine(source, Options{BudgetFraction: 0.25})
	source.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	var counts tally
	all := func(seconds float64) {
		end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
		var wg sync.WaitGroup
		for id := 0; id < goroutines; id++ {
			wg.Add(1)
			go func(id int) {
				defer wg.Done()
				if err := hammer(engine, id, end, &counts); err != nil {
					t.Error(err)
				}
			}(id)
		}
		wg.Wait()
	}
	all(0.5) // the allocator's own arenas, threads
	heap := cheap.InUse()
	before, _ := engine.Memory()
	all(seconds)
	grown := cheap.InUse() - heap
	after, err := engine.Memory()
	t.Logf("%+v; heap grew by %d bytes", counts, grown)
	if counts.answered == 0 || counts.failedReads == 0 || counts.refused == 0 || counts.cancelled == 0 {
		t.Error("some kind of call never happened")
	}
	if grown > 1<<20 || err != nil || before != after {
		t.Errorf("%d bytes; %+v, then %+v (%v)", grown, before, after, err)
	}
	if stats, _ := engine.Stats(); stats.PeakBytes > stats.BudgetBytes {
		t.Errorf("%+v", stats)
	}
}
