package moert

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
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

func TestEveryFormOfALayerCall(t *testing.T) {
	engine := newEngine(t, &testWeights{}, Options{})
	defer engine.Close()
	ctx := context.Background()
	step, err := engine.BeginRequests(Decode, []int64{7})
	if err != nil {
		t.Fatal(err)
	}
	x, y, twice := input(1, 3), make([]float32, hidden), make([]float32, hidden)
	used, err := step.ForwardRouted(ctx, 0, x, []int32{5, 2}, []float32{1, 0}, y)
	if err != nil || used[0] != 5 || used[1] != 2 {
		t.Fatal(used, err)
	}
	if _, err := step.ForwardRouted(ctx, 0, x, []int32{5, 2}, []float32{2, 0}, twice); err != nil {
		t.Fatal(err)
	}
	some := false
	for i := range y { // a layer is linear in the routing weights
		some = some || y[i] != 0
		if d := 2*y[i] - twice[i]; d > 1e-6 || d < -1e-6 {
			t.Fatal(y[i], twice[i])
		}
	}
	if !some {
		t.Fatal("nothing came out")
	}
	lease, err := step.Lease(1, []int32{3})
	if err != nil {
		t.Fatal(err)
	}
	weights, err := lease.Read(0, DownProj)
	if err != nil || len(weights) != hidden*48 {
		t.Fatal(len(weights), err)
	}
	view, err := lease.View(0)
	if err != nil || view.Down.Scheme != "bf16" || view.Expert != 3 {
		t.Fatal(view, err)
	}
	// The first lane of the first tile, in place: bf16 of row 0, column 0 (docs/layout.md).
	b := view.Record[view.Down.WeightOffset:]
	if math.Float32frombits(uint32(b[1])<<24|uint32(b[0])<<16) != weights[0] {
		t.Fatal(b[:4], weights[0])
	}
	if states, err := engine.Residency(1); err != nil || states[3] != ResidentHigh {
		t.Fatal(states, err)
	}
	lease.Release()
	var refused *Error
	if err := step.Forward(ctx, 0, x[:32], y[:32]); !errors.As(err, &refused) || refused.Code != InvalidArgument {
		t.Fatal(err)
	}
	step.End()
	text, err := engine.Prometheus("go")
	if err != nil || !strings.Contains(text, "moert_lookups_total{engine=\"go\"}") {
		t.Fatal(text, err)
	}
	if _, err := NewEngine(&Source{}, Options{}); !errors.As(err, &refused) || refused.Code != InvalidArgument {
		t.Fatal(err)
	}
}
