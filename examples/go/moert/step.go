package moert

/*
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

// Phase of a step.
type Phase int32

const (
	Prefill Phase = C.MOERT_PREFILL
	Decode  Phase = C.MOERT_DECODE
)

// Step is one pass over all MoE layers. (The C API's split calls keep pointers after they return,
// which Go forbids: a goroutine does what they do.)
type Step struct {
	guard     guard
	handle    *C.moert_step
	engine    *Engine
	rows      int
	predictor cgo.Handle // 0: none
}

// PredictNext fills nextInput, rows x the next layer's hidden size, with what that layer's input would
// be if partial, rows x the layer's, were the whole output of the layer. False: cannot tell.
type PredictNext func(layer int, partial, nextInput []float32) bool

// StepOptions are further options of a step.
type StepOptions struct {
	RequestIDs  []int64     // one a row, or nil
	PredictNext PredictNext // resident-forward prediction, or nil
}

// BeginWith is Begin with options.
func (e *Engine) BeginWith(phase Phase, rows int, options StepOptions) (*Step, error) {
	if options.RequestIDs != nil && len(options.RequestIDs) != rows {
		return nil, &Error{InvalidArgument, "BeginWith",
			fmt.Sprintf("%d request ids for %d rows", len(options.RequestIDs), rows)}
	}
	var ids *C.int64_t
	if len(options.RequestIDs) > 0 {
		ids = (*C.int64_t)(unsafe.Pointer(&options.RequestIDs[0]))
	}
	return e.beginWith(phase, rows, ids, options)
}

//export goPredict
func goPredict(handle C.uintptr_t, layer C.int32_t, partial, next *C.moert_tensor) (code C.moert_code) {
	defer func() { // a panic must not unwind into C
		if recover() != nil {
			code = C.MOERT_INTERNAL
		}
	}()
	floats := func(t *C.moert_tensor) []float32 {
		return unsafe.Slice((*float32)(t.data), int64(t.rows*t.cols))
	}
	if !cgo.Handle(handle).Value().(PredictNext)(int(layer), floats(partial), floats(next)) {
		return C.MOERT_UNAVAILABLE
	}
	return C.MOERT_OK
}

// Begin opens a step of `rows` tokens. End it.
func (e *Engine) Begin(phase Phase, rows int) (*Step, error) { return e.begin(phase, rows, nil) }

// BeginRequests is Begin with the request of each row.
func (e *Engine) BeginRequests(phase Phase, requestIDs []int64) (*Step, error) {
	if len(requestIDs) == 0 {
		return nil, &Error{InvalidArgument, "BeginRequests", "requestIDs is empty"}
	}
	return e.begin(phase, len(requestIDs), (*C.int64_t)(unsafe.Pointer(&requestIDs[0])))
}

func (e *Engine) begin(phase Phase, rows int, requestIDs *C.int64_t) (*Step, error) {
	return e.beginWith(phase, rows, requestIDs, StepOptions{})
}

func (e *Engine) beginWith(phase Phase, rows int, requestIDs *C.int64_t, options StepOptions) (*Step, error) {
	var info C.moert_step_options
	C.moert_step_options_init(&info, C.sizeof_moert_step_options)
	info.rows = C.int64_t(rows)
	info.phase = C.moert_phase(phase)
	var predicts cgo.Handle
	if options.PredictNext != nil {
		predicts = cgo.NewHandle(options.PredictNext)
		C.bridge_predict(&info, C.uintptr_t(predicts))
	}
	var handle *C.moert_step
	err := e.check(func(engine *C.moert_engine, err **C.moert_error) C.moert_code {
		return C.bridge_begin(engine, &info, requestIDs, &handle, err)
	})
	if err != nil {
		if predicts != 0 {
			predicts.Delete()
		}
		return nil, err
	}
	return &Step{handle: handle, engine: e, rows: rows, predictor: predicts}, nil
}

// watch cancels the step when the context ends; the function it returns ends the watch.
func (s *Step) watch(ctx context.Context) func() {
	if ctx.Done() == nil {
		return func() {}
	}
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
	return func() { close(finished); <-watching }
}

func (s *Step) call(ctx context.Context, hidden, out []float32,
	f func(step *C.moert_step, hidden, out *C.float, cols C.int64_t, err **C.moert_error) C.moert_code) error {
	if len(hidden) == 0 || len(hidden) != len(out) || len(hidden)%s.rows != 0 {
		return &Error{InvalidArgument, "Forward",
			fmt.Sprintf("hidden has %d elements, out %d, for a step of %d rows", len(hidden), len(out), s.rows)}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.check(func(step *C.moert_step, err **C.moert_error) C.moert_code {
		if step != nil {
			defer s.watch(ctx)()
		}
		return f(step, (*C.float)(unsafe.Pointer(&hidden[0])), (*C.float)(unsafe.Pointer(&out[0])),
			C.int64_t(len(hidden)/s.rows), err)
	})
	if failed, ok := err.(*Error); ok && failed.Code == Cancelled && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Forward runs a layer: hidden and out are rows x the layer's hidden size. When the context ends, the
// step is cancelled: this call and later ones return its error.
func (s *Step) Forward(ctx context.Context, layer int, hidden, out []float32) error {
	return s.call(ctx, hidden, out,
		func(step *C.moert_step, hidden, out *C.float, cols C.int64_t, err **C.moert_error) C.moert_code {
			return C.bridge_forward(step, C.int32_t(layer), hidden, out, C.int64_t(s.rows), cols,
				nil, nil, nil, 0, nil, 0, nil, 0, err)
		})
}

func (s *Step) checkRouting(call string, ids []int32, weights []float32) error {
	if len(ids) == 0 || len(ids) != len(weights) || len(ids)%s.rows != 0 {
		return &Error{InvalidArgument, call,
			fmt.Sprintf("%d ids and %d weights for %d rows", len(ids), len(weights), s.rows)}
	}
	return nil
}

// Scores of a router of the host's own, for policies that read them. Both may be nil.
type Scores struct {
	All  []float32 // rows x experts of the layer
	Next []float32 // rows x experts of the layer behind it (of the first behind the last): predicted
}

// ForwardScored is ForwardRouted for strategies that predict or choose by scores: fate, importance.
func (s *Step) ForwardScored(ctx context.Context, layer int, hidden []float32, ids []int32,
	weights []float32, scores Scores, out []float32) ([]int32, error) {
	if err := s.checkRouting("ForwardScored", ids, weights); err != nil {
		return nil, err
	}
	for _, part := range [][]float32{scores.All, scores.Next} {
		if len(part)%s.rows != 0 {
			return nil, &Error{InvalidArgument, "ForwardScored",
				fmt.Sprintf("%d scores for a step of %d rows", len(part), s.rows)}
		}
	}
	used := make([]int32, len(ids))
	err := s.call(ctx, hidden, out,
		func(step *C.moert_step, hidden, out *C.float, cols C.int64_t, err **C.moert_error) C.moert_code {
			return C.bridge_forward(step, C.int32_t(layer), hidden, out, C.int64_t(s.rows), cols,
				(*C.int32_t)(unsafe.Pointer(&ids[0])), (*C.float)(unsafe.Pointer(&weights[0])),
				(*C.int32_t)(unsafe.Pointer(&used[0])), C.int64_t(len(ids)/s.rows),
				first(scores.All), C.int64_t(len(scores.All)/s.rows),
				first(scores.Next), C.int64_t(len(scores.Next)/s.rows), err)
		})
	return used, err
}

// first is nil for none.
func first(values []float32) *C.float {
	if len(values) == 0 {
		return nil
	}
	return (*C.float)(unsafe.Pointer(&values[0]))
}

// ForwardRouted is Forward with the host's routing. ids, weights: rows x top-k. It returns the experts
// really used: a lossy strategy may replace some.
func (s *Step) ForwardRouted(ctx context.Context, layer int, hidden []float32, ids []int32,
	weights, out []float32) ([]int32, error) {
	return s.ForwardScored(ctx, layer, hidden, ids, weights, Scores{}, out)
}

// Simulate, with Options.Clock Simulation: the layer call of this routing takes its logical time, and
// nothing is computed. ids, weights: rows x top-k. It returns the experts that would be used.
func (s *Step) Simulate(layer int, ids []int32, weights []float32) ([]int32, error) {
	if err := s.checkRouting("Simulate", ids, weights); err != nil {
		return nil, err
	}
	used := make([]int32, len(ids))
	err := s.check(func(step *C.moert_step, err **C.moert_error) C.moert_code {
		return C.bridge_forward(step, C.int32_t(layer), nil, nil, C.int64_t(s.rows), 0,
			(*C.int32_t)(unsafe.Pointer(&ids[0])), (*C.float)(unsafe.Pointer(&weights[0])),
			(*C.int32_t)(unsafe.Pointer(&used[0])), C.int64_t(len(ids)/s.rows), nil, 0, nil, 0, err)
	})
	return used, err
}

// Cancel may be called from any goroutine.
func (s *Step) Cancel() error {
	return s.check(func(step *C.moert_step, err **C.moert_error) C.moert_code {
		return C.moert_step_cancel(step, err)
	})
}

// End frees the step, once calls of other goroutines have returned, and returns its first error.
func (s *Step) End() (err error) {
	ended := make(chan struct{})
	first := s.guard.close(func() {
		err = check(func(err **C.moert_error) C.moert_code { return C.moert_step_end(s.handle, err) })
		if s.predictor != 0 {
			s.predictor.Delete()
		}
		close(ended)
	})
	if first {
		<-ended
	}
	return err
}

// check calls f with the handle, or with nil, which the library refuses, once the step has ended.
func (s *Step) check(f func(handle *C.moert_step, err **C.moert_error) C.moert_code) error {
	handle := s.handle
	if s.guard.enter() {
		defer s.guard.leave()
	} else {
		handle = nil
	}
	return check(func(err **C.moert_error) C.moert_code { return f(handle, err) })
}

// Lease is experts pinned where they lie, until Release or until its step ends; then View and Read
// return FailedPrecondition.
type Lease struct {
	handle *C.moert_lease
}

// Lease loads and pins experts of a layer.
func (s *Step) Lease(layer int, experts []int32) (*Lease, error) {
	if len(experts) == 0 {
		return nil, &Error{InvalidArgument, "Lease", "experts is empty"}
	}
	var handle *C.moert_lease
	err := s.check(func(step *C.moert_step, err **C.moert_error) C.moert_code {
		return C.moert_lease_acquire(step, C.int32_t(layer), (*C.int32_t)(unsafe.Pointer(&experts[0])),
			C.int64_t(len(experts)), &handle, err)
	})
	if err != nil {
		return nil, err
	}
	return &Lease{handle}, nil
}

// Matrix says where a projection lies in a record (docs/reference/layout.md).
type Matrix struct {
	Scheme                       string
	Rows, K, PaddedRows, PaddedK int64
	Group                        int64
	WeightOffset, WeightBytes    int64
	ScaleOffset, ScaleBytes      int64
}

// View is one leased expert in place.
type View struct {
	Record         unsafe.Pointer // Bytes long, the library's: read only, until Release or End
	Bytes          int64
	Expert         int
	Version        int
	Gate, Up, Down Matrix
}

// View shows the i-th leased expert.
func (l *Lease) View(index int) (View, error) {
	var c C.moert_expert_view
	C.moert_expert_view_init(&c, C.sizeof_moert_expert_view)
	err := check(func(err **C.moert_error) C.moert_code {
		return C.moert_lease_view(l.handle, C.int64_t(index), &c, err)
	})
	if err != nil {
		return View{}, err
	}
	matrix := func(m *C.moert_matrix) Matrix {
		return Matrix{C.GoString(m.scheme), int64(m.rows), int64(m.k), int64(m.padded_rows), int64(m.padded_k),
			int64(m.group), int64(m.weight_offset), int64(m.weight_bytes), int64(m.scale_offset), int64(m.scale_bytes)}
	}
	return View{unsafe.Pointer(c.record), int64(c.bytes), int(c.expert), int(c.version),
		matrix(&c.gate), matrix(&c.up), matrix(&c.down)}, nil
}

// Read widens a projection of the i-th leased expert: row-major [rows, k].
func (l *Lease) Read(index int, part Part) ([]float32, error) {
	view, err := l.View(index)
	if err != nil {
		return nil, err
	}
	m := view.Gate
	if part == UpProj {
		m = view.Up
	} else if part == DownProj {
		m = view.Down
	}
	weights := make([]float32, m.Rows*m.K)
	err = check(func(err **C.moert_error) C.moert_code {
		return C.moert_lease_read(l.handle, C.int64_t(index), C.moert_part(part),
			(*C.float)(unsafe.Pointer(&weights[0])), C.uint64_t(len(weights)), err)
	})
	runtime.KeepAlive(weights)
	return weights, err
}

// Release unpins the experts.
func (l *Lease) Release() {
	C.moert_lease_release(l.handle)
	l.handle = nil
}
