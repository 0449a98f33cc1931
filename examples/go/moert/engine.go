package moert

/*
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// Engine owns the experts of one model under one byte budget. It runs on the CPU backend: slices are
// host memory.
type Engine struct {
	guard  guard
	handle *C.moert_engine
}

// Options of an engine; zero values mean the library's defaults.
type Options struct {
	Strategy            string
	Promise             string  // weakest accepted: exact, faithful, lossy; "": the strategy's own
	BudgetBytes         int64   // 0: BudgetFraction decides
	BudgetFraction      float64 // of the experts, in memory; 0: all
	MaxTokensPerForward int64
	Threads, IOThreads  int
	CPUs                string  // of the compute threads, "0-3,8"
	LinkGBps            float64 // paces transfers
	Clock               Clock
	Shard               *Shard    // a part of every layer, whose output is a partial sum; nil: all
	TracePath           string    // writes a routing trace
	TimelinePath        string    // writes a timeline, Chrome trace JSON
	ReplaceTraces       bool      // regular files of these names; else they are an error
	Trace               TraceSink // sees every layer call; nil: none
	Log                 Logger    // nil: silence
	Policies            any       // decides what its methods name (see Observer...); nil: the strategy's own
}

// Clock says what time is.
type Clock int32

const (
	Wall       Clock = C.MOERT_CLOCK_WALL
	Virtual    Clock = C.MOERT_CLOCK_VIRTUAL    // logical time, reproducible to the bit
	Simulation Clock = C.MOERT_CLOCK_SIMULATION // the same, and nothing is read or multiplied: Step.Simulate
)

// NewEngine reads the fixed parts and reserves the pools. Close it.
func NewEngine(source *Source, options Options) (*Engine, error) {
	c := (*C.moert_engine_options)(C.calloc(1, C.sizeof_moert_engine_options))
	defer C.free(unsafe.Pointer(c))
	C.moert_engine_options_init(c, C.sizeof_moert_engine_options)
	c.backend = C.MOERT_BACKEND_CPU
	for field, value := range map[**C.char]string{&c.strategy: options.Strategy,
		&c.promise: options.Promise,
		&c.cpus:    options.CPUs, &c.trace_path: options.TracePath,
		&c.timeline_path: options.TimelinePath} {
		if value != "" {
			*field = C.CString(value)
			defer C.free(unsafe.Pointer(*field))
		}
	}
	if options.ReplaceTraces {
		c.trace_replace = 1
	}
	c.budget_bytes = C.int64_t(options.BudgetBytes)
	if options.BudgetFraction != 0 {
		c.budget_fraction = C.double(options.BudgetFraction)
	}
	if options.MaxTokensPerForward != 0 {
		c.max_tokens_per_forward = C.int64_t(options.MaxTokensPerForward)
	}
	c.threads = C.int32_t(options.Threads)
	if options.IOThreads != 0 {
		c.io_threads = C.int32_t(options.IOThreads)
	}
	c.link_gbps = C.double(options.LinkGBps)
	c.clock = C.moert_clock(options.Clock)
	if options.Shard != nil {
		shard := (*C.moert_shard)(C.calloc(1, C.sizeof_moert_shard))
		defer C.free(unsafe.Pointer(shard))
		list := options.Shard.fill(shard)
		defer C.free(list)
		c.shard = shard
	}
	var given []cgo.Handle // owned by the library once there is an engine
	if options.Policies != nil {
		vtable := (*C.moert_policies)(C.calloc(1, C.sizeof_moert_policies))
		defer C.free(unsafe.Pointer(vtable))
		policies, err := fillPolicies(vtable, options.Policies)
		if err != nil {
			return nil, &Error{InvalidArgument, "NewEngine", "Options.Policies: " + err.Error()}
		}
		given = append(given, policies)
		c.policies = vtable
	}
	if options.Trace != nil {
		sink := (*C.moert_trace_sink)(C.calloc(1, C.sizeof_moert_trace_sink))
		defer C.free(unsafe.Pointer(sink))
		trace := cgo.NewHandle(options.Trace)
		C.bridge_sink(sink, C.uintptr_t(trace), flag(options.Trace.WantsNextScores()))
		given = append(given, trace)
		c.trace_sink = sink
	}
	if options.Log != nil {
		logger := (*C.moert_logger)(C.calloc(1, C.sizeof_moert_logger))
		defer C.free(unsafe.Pointer(logger))
		log := cgo.NewHandle(options.Log)
		C.bridge_logger(logger, C.uintptr_t(log))
		given = append(given, log)
		c.logger = logger
	}
	var handle *C.moert_engine
	err := check(func(err **C.moert_error) C.moert_code {
		return C.moert_engine_create(source.handle, c, &handle, err)
	})
	runtime.KeepAlive(source)
	if err != nil {
		for _, handle := range given {
			handle.Delete() // the library did not take them
		}
		return nil, err
	}
	return &Engine{handle: handle}, nil
}

// Close frees the engine, once calls of other goroutines have returned; steps still open keep its
// memory until they end. Later calls fail with InvalidArgument.
func (e *Engine) Close() { e.guard.close(func() { C.moert_engine_destroy(e.handle) }) }

// use calls f with the handle, or with nil, which the library refuses, once the engine is closed.
func (e *Engine) use(f func(handle *C.moert_engine)) {
	if !e.guard.enter() {
		f(nil)
		return
	}
	defer e.guard.leave()
	f(e.handle)
}

func (e *Engine) check(call func(handle *C.moert_engine, err **C.moert_error) C.moert_code) (err error) {
	e.use(func(handle *C.moert_engine) {
		err = check(func(err **C.moert_error) C.moert_code { return call(handle, err) })
	})
	return err
}

// Layers is the number of MoE layers.
func (e *Engine) Layers() (layers int) {
	e.use(func(handle *C.moert_engine) { layers = int(C.moert_engine_layer_count(handle)) })
	return layers
}

func (e *Engine) layer(layer int) (C.moert_layer_spec, error) {
	var c C.moert_layer_spec
	C.moert_layer_spec_init(&c, C.sizeof_moert_layer_spec)
	err := e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_layer(handle, C.int32_t(layer), &c, err)
	})
	return c, err
}

// Hidden is the width of a layer's hidden states.
func (e *Engine) Hidden(layer int) (int, error) {
	c, err := e.layer(layer)
	return int(c.hidden), err
}

// Promise is exact (the same bits at any budget), faithful (rounded as two processors do) or lossy.
func (e *Engine) Promise() (promise string) {
	e.use(func(handle *C.moert_engine) { promise = C.GoString(C.moert_engine_promise(handle)) })
	return promise
}

// Exact says that the output is the same at any budget and thread count.
func (e *Engine) Exact() (exact bool) {
	e.use(func(handle *C.moert_engine) { exact = C.moert_engine_exact(handle) != 0 })
	return exact
}

// GraphSafe says that layer calls may be recorded into a CUDA graph.
func (e *Engine) GraphSafe() (safe bool) {
	e.use(func(handle *C.moert_engine) { safe = C.moert_engine_graph_safe(handle) != 0 })
	return safe
}

// GraphNeeds is what captured layer calls ask of a host. EagerEvery: of so many steps one has to run
// eagerly between replays; 0: none. Obstacle: why they cannot be captured. MaxRows: of a captured
// call, at most; 0: any number.
type GraphNeeds struct {
	Capturable bool
	EagerEvery int
	Obstacle   string
	MaxRows    int64
}

// GraphNeeds of the engine; they do not change.
func (e *Engine) GraphNeeds() (GraphNeeds, error) {
	var c C.moert_graph_needs
	var obstacle string
	C.moert_graph_needs_init(&c, C.sizeof_moert_graph_needs)
	err := e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		code := C.moert_engine_graph_needs(handle, &c, err)
		obstacle = C.GoString(c.obstacle)
		return code
	})
	return GraphNeeds{c.capturable != 0, int(c.eager_every), obstacle, int64(c.max_rows)}, err
}

// SetBudget evicts to fit before it returns. bytes 0: the fraction decides.
func (e *Engine) SetBudget(bytes int64, fraction float64) error {
	return e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_set_budget(handle, C.int64_t(bytes), C.double(fraction), err)
	})
}

// Prefetch says which experts of a layer are coming, best first.
func (e *Engine) Prefetch(layer int, experts []int32) error {
	if len(experts) == 0 {
		return nil
	}
	return e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_prefetch(handle, C.int32_t(layer),
			(*C.int32_t)(unsafe.Pointer(&experts[0])), C.int64_t(len(experts)), err)
	})
}

// Residency of an expert.
type Residency uint8

const (
	Absent       Residency = C.MOERT_ABSENT
	Arriving     Residency = C.MOERT_ARRIVING
	ResidentLow  Residency = C.MOERT_RESIDENT_LOW
	ResidentHigh Residency = C.MOERT_RESIDENT_HIGH
)

// Residency of each expert of a layer.
func (e *Engine) Residency(layer int) ([]Residency, error) {
	spec, err := e.layer(layer)
	if err != nil {
		return nil, err
	}
	states := make([]Residency, int(spec.num_experts))
	err = e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_residency(handle, C.int32_t(layer), (*C.uint8_t)(unsafe.Pointer(&states[0])),
			C.int64_t(len(states)), err)
	})
	return states, err
}

// Stats are the counters that every host can use; Metrics has all.
type Stats struct {
	BudgetBytes, PeakBytes                                int64
	Lookups, HitsResident, HitsPrefetched, Late           int64
	Loads, Prefetches, BytesLoaded, Evictions, StalledNs  int64
	Substituted, LowAnswers, PolicyFallbacks, CPUComputed int64
}

// Stats since the engine was created.
func (e *Engine) Stats() (Stats, error) {
	var c C.moert_stats
	C.moert_stats_init(&c, C.sizeof_moert_stats)
	err := e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_stats(handle, &c, err)
	})
	return Stats{int64(c.budget_bytes), int64(c.peak_bytes), int64(c.lookups), int64(c.hits_resident),
		int64(c.hits_prefetched), int64(c.late), int64(c.loads), int64(c.prefetches), int64(c.bytes_loaded),
		int64(c.evictions), int64(c.stalled_ns), int64(c.substituted), int64(c.low_answers),
		int64(c.policy_fallbacks), int64(c.cpu_computed)}, err
}

// Metrics is every metric of one snapshot by its name (docs/reference/metrics.md).
func (e *Engine) Metrics() (map[string]float64, error) {
	metrics := map[string]float64{}
	found := cgo.NewHandle(metrics)
	defer found.Delete()
	err := e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.bridge_metrics(handle, C.uintptr_t(found), err)
	})
	return metrics, err
}

//export goMetric
func goMetric(handle C.uintptr_t, name *C.char, value C.double) {
	cgo.Handle(handle).Value().(map[string]float64)[C.GoString(name)] = float64(value)
}

// Memory is what the budget pays for, in bytes and slots.
type Memory struct {
	BudgetBytes, ConstantBytes, TableBytes, WorkspaceBytes, BlockBytes, Slots, TotalExperts, MinimumBytes int64
}

// Memory report of the engine.
func (e *Engine) Memory() (Memory, error) {
	var c C.moert_memory
	C.moert_memory_init(&c, C.sizeof_moert_memory)
	err := e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_memory(handle, &c, err)
	})
	return Memory{int64(c.budget_bytes), int64(c.constant_bytes), int64(c.table_bytes),
		int64(c.workspace_bytes), int64(c.block_bytes), int64(c.slots), int64(c.total_experts),
		int64(c.minimum_bytes)}, err
}

// Prometheus is the statistics as Prometheus text; label names the engine.
func (e *Engine) Prometheus(label string) (string, error) {
	cLabel := C.CString(label)
	defer C.free(unsafe.Pointer(cLabel))
	size := C.uint64_t(8192)
	for {
		buffer := (*C.char)(C.malloc(C.size_t(size)))
		var needed C.uint64_t
		err := e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
			return C.moert_metrics_prometheus(handle, cLabel, buffer, size, &needed, err)
		})
		if err == nil {
			text := C.GoString(buffer)
			C.free(unsafe.Pointer(buffer))
			return text, nil
		}
		C.free(unsafe.Pointer(buffer))
		if needed <= size {
			return "", err
		}
		size = needed + 64 // numbers may have grown a digit by then
	}
}

// CloseTrace completes the files of Options.TracePath and TimelinePath.
func (e *Engine) CloseTrace() error {
	return e.check(func(handle *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.moert_engine_close_trace(handle, err)
	})
}
