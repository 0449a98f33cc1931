package moert

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
)

// fifo evicts the candidate that came first.
type fifo struct{ asked *int32 }

func (f fifo) Victim(_ PolicyContext, candidates []Candidate, _ bool) (int, bool) {
	atomic.AddInt32(f.asked, 1)
	first := 0
	for i, c := range candidates {
		if c.Inserted < candidates[first].Inserted {
			first = i
		}
	}
	return first, true
}

func TestAStrategyOfTheHostHasANameLikeOurs(t *testing.T) {
	var asked int32
	info := StrategyInfo{"go-fifo", "evicts what came first", []StrategyKey{{"over", "the spec it builds on"}}}
	factory := func(params Params) (string, any, error) {
		over, given := params.Get("over")
		switch {
		case over == "panic":
			panic("a host's bug")
		case over == "nothing":
			return "", nil, errors.New("over=nothing: must name a strategy")
		case !given:
			over = "on-demand"
		}
		return over, fifo{&asked}, nil
	}
	if err := RegisterStrategy(info, factory); err != nil {
		t.Fatal(err)
	}
	var twice *Error
	if err := RegisterStrategy(info, factory); !errors.As(err, &twice) || twice.Code != AlreadyExists {
		t.Fatal(err)
	}
	all, err := Strategies()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range all {
		found = found || reflect.DeepEqual(s, info)
	}
	if !found {
		t.Fatalf("%+v", all)
	}

	layers := []LayerSpec{{NumExperts: 8, TopK: 2, Hidden: hidden, Intermediate: 48}}
	source, err := NewSource("w", layers, &testWeights{})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	for spec, why := range map[string]string{"go-fifo:over=nothing": "must name a strategy",
		"go-fifo:over=panic": "panicked", "go-fifo:under=1": "under"} {
		if _, err := NewEngine(source, Options{Strategy: spec}); err == nil || !strings.Contains(err.Error(), why) {
			t.Fatal(spec, err)
		}
	}
	engine, err := NewEngine(source, Options{Strategy: "go-fifo", BudgetFraction: 0.25})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	x, y := input(1, 1), make([]float32, hidden)
	for expert := int32(0); expert < 8; expert++ {
		step, _ := engine.Begin(Decode, 1)
		ids := []int32{expert, (expert + 1) % 8}
		if _, err := step.ForwardRouted(context.Background(), 0, x, ids, []float32{0.5, 0.5}, y); err != nil {
			t.Fatal(err)
		}
		if err := step.End(); err != nil {
			t.Fatal(err)
		}
	}
	stats, _ := engine.Stats()
	if atomic.LoadInt32(&asked) == 0 || stats.PolicyFallbacks != 0 {
		t.Fatal(asked, stats)
	}
}

type recorder struct {
	layers []int
	ids    [][]int32
	spans  int
}

func (r *recorder) Call(call TraceCall) {
	if call.EndNs >= call.BeginNs {
		r.layers = append(r.layers, call.Layer)
		r.ids = append(r.ids, append([]int32(nil), call.IDs...)) // the library's for the call only
	}
}
func (r *recorder) Span(span TraceSpan) {
	if span.Name != "" && span.EndNs >= span.BeginNs {
		r.spans++
	}
}
func (r *recorder) WantsNextScores() bool { return false }

func TestASimulatedEngineDecidesAsARealOne(t *testing.T) {
	run := func(clock Clock) (*recorder, Stats) {
		seen := &recorder{}
		engine := newEngine(t, &testWeights{}, Options{BudgetFraction: 0.5, Clock: clock, Trace: seen})
		defer engine.Close()
		x, y := input(1, 1), make([]float32, hidden)
		for s := int32(0); s < 40; s++ {
			ids := []int32{s * 3 % 8, (s*5 + 1) % 8}
			if ids[0] == ids[1] {
				continue
			}
			step, err := engine.Begin(Decode, 1)
			if err != nil {
				t.Fatal(err)
			}
			for layer := 0; layer < 2; layer++ {
				var used []int32
				if clock == Simulation {
					used, err = step.Simulate(layer, ids, []float32{0.5, 0.5})
				} else {
					used, err = step.ForwardRouted(context.Background(), layer, x, ids, []float32{0.5, 0.5}, y)
				}
				if err != nil || !reflect.DeepEqual(used, ids) {
					t.Fatal(used, err)
				}
			}
			if err := step.End(); err != nil {
				t.Fatal(err)
			}
		}
		stats, _ := engine.Stats()
		return seen, stats
	}
	real, realStats := run(Virtual)
	simulated, simulatedStats := run(Simulation)
	if !reflect.DeepEqual(real, simulated) || len(real.ids) == 0 || real.spans == 0 {
		t.Fatalf("%+v\n%+v", real, simulated)
	}
	if realStats.HitsResident != simulatedStats.HitsResident || realStats.Loads != simulatedStats.Loads ||
		realStats.Evictions != simulatedStats.Evictions || realStats.Evictions == 0 {
		t.Fatalf("%+v\n%+v", realStats, simulatedStats)
	}
}

func TestALogReachesTheHost(t *testing.T) {
	var lines int32
	logger := func(level Level, line string) {
		if line != "" && (level == LogInfo || level == LogWarning || level == LogError) {
			atomic.AddInt32(&lines, 1)
		}
	}
	// A policy that cannot be carried out is said once.
	wrong := wrongVictim{}
	engine := newEngine(t, &testWeights{}, Options{BudgetFraction: 0.25, Log: logger, Policies: wrong})
	defer engine.Close()
	x, y := input(1, 1), make([]float32, hidden)
	for s := 0; s < 8; s++ {
		step, _ := engine.Begin(Decode, 1)
		ids := []int32{int32(s), int32(s+1) % 8}
		if _, err := step.ForwardRouted(context.Background(), 0, x, ids, []float32{0.5, 0.5}, y); err != nil {
			t.Fatal(err)
		}
		if err := step.End(); err != nil {
			t.Fatal(err)
		}
	}
	if stats, _ := engine.Stats(); stats.PolicyFallbacks == 0 {
		t.Fatal("no fallback")
	}
	if atomic.LoadInt32(&lines) == 0 {
		t.Fatal("nothing was logged")
	}
}

type wrongVictim struct{}

func (wrongVictim) Victim(PolicyContext, []Candidate, bool) (int, bool) { return 1 << 20, true }
