package moert

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
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

// cachePolicies decide what an exact engine may leave to its host; wrong makes every answer one that cannot be carried out, or a panic.
type cachePolicies struct {
	wrong                                             bool
	observed, ranked, sized, asked, inserted, evicted int
}

func (p *cachePolicies) Observe(c PolicyContext, r RoutingView) {
	if len(r.Counts) != 8 || len(r.IDs) != 2 || len(r.Scores) != 8 || c.Phase != Decode {
		panic("what was observed")
	}
	p.observed++
}
func (p *cachePolicies) Victim(c PolicyContext, candidates []Candidate, forPrefetch bool) (int, bool) {
	p.asked++
	best := 0
	for i, c := range candidates {
		if c.LastUsed > candidates[best].LastUsed {
			best = i
		}
	}
	if p.wrong {
		best = 1000
	}
	return best, true
}
func (p *cachePolicies) WantsNextGate() bool { return true }
func (p *cachePolicies) Rank(f Prefetch) ([]Prediction, bool) {
	p.ranked++
	if len(f.PredictedScores) != 8 || len(f.Resident) != 8 || f.TargetLayer != (f.Context.Layer+1)%2 {
		panic("what is predicted from")
	}
	if p.wrong {
		return []Prediction{{99, 1, 0}}, true
	}
	return []Prediction{{0, 2, 1}, {1, 1, 1}}, true
}
func (p *cachePolicies) Capacity(s Sizes) ([]int32, bool) {
	p.sized++
	if p.wrong {
		return make([]int32, s.Layers+1), true
	}
	return []int32{int32(s.Slots) - 1, 1}, s.Layers == 2
}
func (p *cachePolicies) Inserted(layer, expert int, prefetch bool) { p.inserted++ }
func (p *cachePolicies) Evicted(layer, expert int)                 { p.evicted++ }

type allPolicies struct {
	cachePolicies
	ruled, placed int
}

func (p *allPolicies) Rule(c PolicyContext, own Rule) (Rule, bool) {
	p.ruled++
	rule := Rule{true, 1, 1, 1, false, true}
	if p.wrong {
		rule.Alpha = 7
	}
	return rule, !own.ExpertCache
}
func (p *allPolicies) Place(c PolicyContext, misses []Miss, linkBusyNs int64) ([]Placement, bool) {
	p.placed++
	if p.wrong {
		panic("a host's bug")
	}
	return make([]Placement, len(misses)), misses[0].Tokens == 1 && misses[0].CPUNs < 0
}
func (p *allPolicies) Precision(s Precision) (promote, demote []int64, ok bool) {
	return nil, nil, len(s.Selections) == 16 && len(s.HighCapacity) == 2
}
func (p *allPolicies) Transfer(t Transfer) (int, bool) { return 0, true }

func TestPoliciesDecide(t *testing.T) {
	run := func(policies any) ([]float32, Stats, bool) {
		engine := newEngine(t, &testWeights{}, Options{BudgetFraction: 0.5, Clock: Virtual, Policies: policies})
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
		if engine.GraphSafe() {
			t.Error("there is no graph on a CPU")
		}
		needs, err := engine.GraphNeeds()
		if err != nil || needs.Capturable || needs.EagerEvery != 0 || needs.Obstacle == "" {
			t.Error("there is no graph on a CPU:", needs, err)
		}
		return all, stats, engine.Exact()
	}
	same := func(a, b []float32) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	plain, _, _ := run(nil)
	cache := &cachePolicies{}
	mine, stats, exact := run(cache)
	if !exact || !same(plain, mine) {
		t.Fatal("cache policies changed the output")
	}
	if cache.observed != 40 || cache.ranked != 40 || cache.asked == 0 || cache.sized == 0 ||
		cache.inserted <= cache.evicted || stats.PolicyFallbacks != 0 || stats.Prefetches == 0 {
		t.Fatalf("%+v %+v", *cache, stats)
	}
	all := &allPolicies{}
	mine, stats, exact = run(all)
	if exact || same(plain, mine) || stats.Substituted == 0 || stats.PolicyFallbacks != 0 ||
		all.ruled != 40 || all.placed == 0 {
		t.Fatalf("%+v %+v", *all, stats)
	}
	all = &allPolicies{cachePolicies: cachePolicies{wrong: true}}
	mine, stats, _ = run(all) // nothing of it can be carried out
	if !same(plain, mine) || stats.Substituted != 0 ||
		stats.PolicyFallbacks < int64(all.ruled+all.ranked+all.asked+all.placed) {
		t.Fatalf("%+v %+v", *all, stats)
	}
	source, _ := NewSource("w", []LayerSpec{{NumExperts: 2, TopK: 1, Hidden: 64, Intermediate: 48}}, &testWeights{})
	defer source.Close()
	if _, err := NewEngine(source, Options{Policies: 5}); err == nil || !strings.Contains(err.Error(), "a int has none") {
		t.Fatal(err)
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
	// With scores the same comes out; of another shape they are refused.
	scored, experts := make([]float32, hidden), 8
	if _, err := step.ForwardScored(ctx, 0, x, []int32{5, 2}, []float32{2, 0},
		Scores{All: make([]float32, experts), Next: make([]float32, experts)}, scored); err != nil || !reflect.DeepEqual(scored, twice) {
		t.Fatal(err)
	}
	if _, err := step.ForwardScored(ctx, 0, x, []int32{5, 2}, []float32{2, 0},
		Scores{All: make([]float32, experts+1)}, scored); err == nil {
		t.Fatal("scores of another shape were taken")
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
	// The first lane of the first tile, in place: bf16 of row 0, column 0 (docs/reference/layout.md).
	b := unsafe.Slice((*byte)(view.Record), view.Bytes)[view.Down.WeightOffset:]
	if math.Float32frombits(uint32(b[1])<<24|uint32(b[0])<<16) != weights[0] {
		t.Fatal(b[:4], weights[0])
	}
	if states, err := engine.Residency(1); err != nil || states[3] != ResidentHigh {
		t.Fatal(states, err)
	}
	lease.Release()
	var refused *Error
	if lease, err = step.Lease(1, []int32{3}); err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := step.Forward(ctx, 0, x[:32], y[:32]); !errors.As(err, &refused) || refused.Code != InvalidArgument {
		t.Fatal(err)
	}
	step.End()
	if _, err := lease.Read(0, DownProj); !errors.As(err, &refused) || refused.Code != FailedPrecondition {
		t.Fatal(err)
	}
	text, err := engine.Prometheus("go")
	if err != nil || !strings.Contains(text, "moert_lookups_total{engine=\"go\"}") {
		t.Fatal(text, err)
	}
	if _, err := NewEngine(&Source{}, Options{}); !errors.As(err, &refused) || refused.Code != InvalidArgument {
		t.Fatal(err)
	}
}

func TestPredictNext(t *testing.T) {
	engine := newEngine(t, &testWeights{}, Options{Strategy: "importance:alpha=0", BudgetFraction: 0.5})
	defer engine.Close()
	calls, y := 0, make([]float32, hidden)
	for s := 0; s < 6; s++ {
		next := input(1, 2*s+1)
		step, err := engine.BeginWith(Decode, 1, StepOptions{PredictNext: func(layer int, partial, to []float32) bool {
			if layer != 0 || len(partial) != hidden || len(to) != hidden {
				t.Error("what is predicted from", layer, len(partial), len(to))
			}
			copy(to, next)
			calls++
			if calls == 1 {
				panic("a host's bug")
			}
			return calls > 2
		}})
		if err != nil {
			t.Fatal(err)
		}
		for l := 0; l < 2; l++ {
			if err := step.Forward(context.Background(), l, input(1, 2*s+l), y); err != nil {
				t.Fatal(err)
			}
		}
		if err := step.End(); err != nil {
			t.Fatal(err)
		}
	}
	stats, _ := engine.Stats()
	metrics, err := engine.Metrics()
	if err != nil || metrics["moert_lookups_total"] != float64(stats.Lookups) {
		t.Error(metrics, err)
	}
	forward := int(metrics["moert_predictions_resident_forward_total"])
	if calls < 3 || forward != calls-2 || stats.PolicyFallbacks != 2 {
		t.Error("predictions", calls, forward, stats.PolicyFallbacks)
	}
	if _, err := engine.BeginWith(Decode, 1, StepOptions{RequestIDs: []int64{1, 2}}); err == nil {
		t.Error("two requests for a row")
	}
}
