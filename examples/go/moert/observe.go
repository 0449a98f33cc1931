package moert

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// Level of a line of the log.
type Level int32

const (
	LogInfo    Level = C.MOERT_LOG_INFO
	LogWarning Level = C.MOERT_LOG_WARNING
	LogError   Level = C.MOERT_LOG_ERROR
)

// Logger takes one line for whoever operates the host, in the thread that caused it.
type Logger func(level Level, line string)

// TraceCall is one layer call. Slices are the library's, for the call; times are of the engine's clock.
type TraceCall struct {
	Step                           int64
	Layer                          int
	Phase                          Phase
	Tokens, TopK                   int
	RequestIDs                     []int64   // one a token, or nil
	IDs                            []int32   // tokens x top-k, the experts used
	Weights                        []float32 // tokens x top-k
	Scores                         []float32 // tokens x experts, or nil
	NextScores                     []float32 // tokens x experts of the next layer, or nil
	BeginNs, EndNs                 int64
	RouteNs, MultiplyNs, StalledNs int64
}

// Track of a span.
type Track int32

const (
	TrackSteps  Track = C.MOERT_TRACK_STEPS
	TrackLayers Track = C.MOERT_TRACK_LAYERS
	TrackStalls Track = C.MOERT_TRACK_STALLS
	TrackLink   Track = C.MOERT_TRACK_LINK // its spans may overlap
)

// TraceSpan is something that took time; -1: does not apply.
type TraceSpan struct {
	Name           string
	Track          Track
	BeginNs, EndNs int64
	Step           int64
	Layer, Expert  int
	Bytes          int64
}

// TraceSink sees every layer call, one at a time while the engine is locked: it must not call the engine.
type TraceSink interface {
	Call(call TraceCall)
	Span(span TraceSpan)
	// WantsNextScores is asked once: true has every call carry the next layer's scores.
	WantsNextScores() bool
}

//export goLog
func goLog(handle C.uintptr_t, level C.moert_log_level, line *C.char) {
	defer func() { _ = recover() }() // a panic must not unwind into C
	cgo.Handle(handle).Value().(Logger)(Level(level), C.GoString(line))
}

//export goTraceCall
func goTraceCall(handle C.uintptr_t, c *C.moert_trace_call) {
	defer func() { _ = recover() }()
	tokens, slots := int(c.tokens), int(c.tokens)*int(c.top_k)
	cgo.Handle(handle).Value().(TraceSink).Call(TraceCall{
		Step: int64(c.step), Layer: int(c.layer), Phase: Phase(c.phase), Tokens: tokens, TopK: int(c.top_k),
		RequestIDs: array[int64](unsafe.Pointer(c.request_ids), tokens),
		IDs:        array[int32](unsafe.Pointer(c.ids), slots),
		Weights:    array[float32](unsafe.Pointer(c.weights), slots),
		Scores:     array[float32](unsafe.Pointer(c.scores), tokens*int(c.num_experts)),
		NextScores: array[float32](unsafe.Pointer(c.next_scores), tokens*int(c.next_experts)),
		BeginNs:    int64(c.times.begin_ns), EndNs: int64(c.times.end_ns), RouteNs: int64(c.times.route_ns),
		MultiplyNs: int64(c.times.multiply_ns), StalledNs: int64(c.times.stalled_ns)})
}

//export goTraceSpan
func goTraceSpan(handle C.uintptr_t, c *C.moert_trace_span) {
	defer func() { _ = recover() }()
	cgo.Handle(handle).Value().(TraceSink).Span(TraceSpan{C.GoString(c.name), Track(c.track),
		int64(c.begin_ns), int64(c.end_ns), int64(c.step), int(c.layer), int(c.expert), int64(c.bytes)})
}
