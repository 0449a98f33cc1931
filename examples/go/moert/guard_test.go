package moert

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Freed under a call of another goroutine, a handle would be a crash.
func TestCloseAndEndWaitForCalls(t *testing.T) {
	for round := 0; round < 50; round++ {
		engine := newEngine(t, &testWeights{}, Options{Threads: 1})
		step, err := engine.Begin(Decode, 1)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := 0; i < 4; i++ {
			all.Add(2)
			go func() {
				defer all.Done()
				for err := error(nil); err == nil; _, err = engine.Metrics() {
					engine.SetBudget(0, 0.9)
				}
			}()
			go func(i int) {
				defer all.Done()
				x, y := input(1, i), make([]float32, hidden)
				for err := error(nil); err == nil; {
					err = step.Forward(context.Background(), 0, x, y)
				}
			}(i)
		}
		time.Sleep(2 * time.Millisecond)
		engine.Close()
		if err := step.End(); err != nil {
			t.Fatal(err)
		}
		if err := step.End(); err != nil { // as before: nothing is left to end
			t.Fatal(err)
		}
		all.Wait()
		if err := engine.SetBudget(0, 1); err == nil {
			t.Fatal("a closed engine took a budget")
		}
	}
}
