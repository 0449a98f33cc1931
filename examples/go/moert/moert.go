// Package moert links libmoert through its C ABI.
//
// No Go pointer is stored in C: callbacks carry an integer handle (runtime/cgo.Handle) to one exported
// trampoline each. Engines may be used from any number of goroutines.
package moert

/*
#cgo pkg-config: moert
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

// Code is a moert_code: Abseil's status codes, negated.
type Code int32

const (
	Cancelled         Code = C.MOERT_CANCELLED
	InvalidArgument   Code = C.MOERT_INVALID_ARGUMENT
	NotFound          Code = C.MOERT_NOT_FOUND
	ResourceExhausted Code = C.MOERT_RESOURCE_EXHAUSTED
	Internal          Code = C.MOERT_INTERNAL
	DataLoss          Code = C.MOERT_DATA_LOSS
)

func (c Code) String() string { return C.GoString(C.moert_code_name(C.moert_code(c))) }

// Error is a failed call: its code, the function that failed, and what is wrong.
type Error struct {
	Code    Code
	Origin  string
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %s", e.Origin, e.Code, e.Message) }

// result turns a code and its error object, which it frees, into a Go error.
func result(code C.moert_code, err *C.moert_error) error {
	if code == C.MOERT_OK {
		return nil
	}
	defer C.moert_error_destroy(err)
	return &Error{Code(code), C.GoString(C.moert_error_origin(err)), C.GoString(C.moert_error_message(err))}
}

// Engine owns the experts of one model under one byte budget.
type Engine struct {
	handle *C.moert_engine
}

// Options are the ones that hosts most often set; zero values mean the library's defaults.
type Options struct {
	Strategy            string
	BudgetBytes         int64   // 0: BudgetFraction decides
	BudgetFraction      float64 // of the experts, in memory; 0: all
	MaxTokensPerForward int64
	Threads             int
	VirtualClock        bool     // logical time, reproducible to the bit
	Policies            Policies // nil: the strategy's own
}

// NewEngine reads the fixed parts and reserves the pools. Close it.
func NewEngine(source *Source, options Options) (*Engine, error) {
	c := (*C.moert_engine_options)(C.calloc(1, C.sizeof_moert_engine_options))
	defer C.free(unsafe.Pointer(c))
	C.moert_engine_options_init(c, C.sizeof_moert_engine_options)
	if options.Strategy != "" {
		c.strategy = C.CString(options.Strategy)
		defer C.free(unsafe.Pointer(c.strategy))
	}
	c.budget_bytes = C.int64_t(options.BudgetBytes)
	if options.BudgetFraction != 0 {
		c.budget_fraction = C.double(options.BudgetFraction)
	}
	if options.MaxTokensPerForward != 0 {
		c.max_tokens_per_forward = C.int64_t(options.MaxTokensPerForward)
	}
	c.threads = C.int32_t(options.Threads)
	if options.VirtualClock {
		c.clock = C.MOERT_CLOCK_VIRTUAL
	}
	var policies cgo.Handle
	if options.Policies != nil {
		policies = cgo.NewHandle(options.Policies)
		vtable := (*C.moert_policies)(C.calloc(1, C.sizeof_moert_policies))
		defer C.free(unsafe.Pointer(vtable))
		C.bridge_policies(vtable, C.uintptr_t(policies))
		c.policies = vtable
	}
	var handle *C.moert_engine
	var err *C.moert_error
	code := C.moert_engine_create(source.handle, c, &handle, &err)
	runtime.KeepAlive(source)
	if failed := result(code, err); failed != nil {
		if policies != 0 {
			policies.Delete() // on failure they stayed ours
		}
		return nil, failed
	}
	return &Engine{handle}, nil
}

// Close frees the engine; steps still open keep its memory until they end.
func (e *Engine) Close() {
	C.moert_engine_destroy(e.handle)
	e.handle = nil
}

// Layers is the number of MoE layers.
func (e *Engine) Layers() int { return int(C.moert_engine_layer_count(e.handle)) }

// SetBudget evicts to fit before it returns. bytes 0: the fraction decides.
func (e *Engine) SetBudget(bytes int64, fraction float64) error {
	var err *C.moert_error
	return result(C.moert_engine_set_budget(e.handle, C.int64_t(bytes), C.double(fraction), &err), err)
}

// PrefetchHint says which experts of a layer are coming, best first.
func (e *Engine) PrefetchHint(layer int, experts []int32) error {
	if len(experts) == 0 {
		return nil
	}
	var err *C.moert_error
	code := C.moert_prefetch_hint(e.handle, C.int32_t(layer), (*C.int32_t)(unsafe.Pointer(&experts[0])),
		C.int64_t(len(experts)), &err)
	return result(code, err)
}

// Stats are the counters most asked for.
type Stats struct {
	BudgetBytes, PeakBytes                                  int64
	Lookups, HitsResident, HitsPrefetched, Loads, Evictions int64
	PrefetchIssued, PolicyFallbacks                         int64
}

// Stats since the engine was created.
func (e *Engine) Stats() (Stats, error) {
	var c C.moert_stats
	C.moert_stats_init(&c, C.sizeof_moert_stats)
	var err *C.moert_error
	if failed := result(C.moert_engine_stats(e.handle, &c, &err), err); failed != nil {
		return Stats{}, failed
	}
	return Stats{int64(c.budget_bytes), int64(c.peak_bytes), int64(c.lookups), int64(c.hits_resident),
		int64(c.hits_prefetched), int64(c.loads), int64(c.evictions), int64(c.prefetch_issued),
		int64(c.policy_fallbacks)}, nil
}

// Phase of a step.
type Phase int32

const (
	Prefill Phase = C.MOERT_PREFILL
	Decode  Phase = C.MOERT_DECODE
)

// Step is one pass over all MoE layers.
type Step struct {
	handle *C.moert_step
	rows   int
}

// Begin opens a step of `rows` tokens. End it.
func (e *Engine) Begin(phase Phase, rows int) (*Step, error) {
	var info C.moert_step_info
	C.moert_step_info_init(&info, C.sizeof_moert_step_info)
	info.rows = C.int64_t(rows)
	info.phase = C.moert_phase(phase)
	var handle *C.moert_step
	var err *C.moert_error
	if failed := result(C.moert_step_begin(e.handle, &info, nil, nil, nil, &handle, &err), err); failed != nil {
		return nil, failed
	}
	return &Step{handle, rows}, nil
}

// Forward runs a layer: hidden and out are rows x the layer's hidden size. When the context ends, the
// step is cancelled: this call and later ones return its error.
func (s *Step) Forward(ctx context.Context, layer int, hidden, out []float32) error {
	if len(hidden) == 0 || len(hidden) != len(out) || len(hidden)%s.rows != 0 {
		return &Error{InvalidArgument, "Forward", "hidden and out must be the same whole number of rows"}
	}
	if ctx.Done() != nil {
		finished := make(chan struct{})
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			select {
			case <-ctx.Done():
				C.moert_step_cancel(s.handle, nil)
			case <-finished:
			}
		}()
		// The watcher is gone before the step can be: End frees the handle.
		defer func() { close(finished); <-watching }()
	}
	var err *C.moert_error
	code := C.moert_layer_forward(s.handle, C.int32_t(layer), unsafe.Pointer(&hidden[0]),
		C.int64_t(len(hidden)/s.rows), C.MOERT_F32, C.int64_t(s.rows), unsafe.Pointer(&out[0]), nil, &err)
	failed := result(code, err)
	if Code(code) == Cancelled && ctx.Err() != nil {
		return ctx.Err()
	}
	return failed
}

// Cancel may be called from any goroutine until End is.
func (s *Step) Cancel() error {
	var err *C.moert_error
	return result(C.moert_step_cancel(s.handle, &err), err)
}

// End frees the step and returns its first error.
func (s *Step) End() error {
	var err *C.moert_error
	handle := s.handle
	s.handle = nil
	return result(C.moert_step_end(handle, &err), err)
}
