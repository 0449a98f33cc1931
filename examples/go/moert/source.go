package moert

/*
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"fmt"
	"runtime/cgo"
	"unsafe"
)

// Part of a layer's weights.
type Part int32

const (
	GateProj      Part = C.MOERT_PART_GATE_PROJ
	UpProj        Part = C.MOERT_PART_UP_PROJ
	DownProj      Part = C.MOERT_PART_DOWN_PROJ
	Router        Part = C.MOERT_PART_ROUTER
	SelectionBias Part = C.MOERT_PART_SELECTION_BIAS
	SharedGate    Part = C.MOERT_PART_SHARED_GATE
	LogitBias     Part = C.MOERT_PART_LOGIT_BIAS
	ExpertScales  Part = C.MOERT_PART_EXPERT_SCALES
	GateBias      Part = C.MOERT_PART_GATE_BIAS
	UpBias        Part = C.MOERT_PART_UP_BIAS
	DownBias      Part = C.MOERT_PART_DOWN_BIAS
)

// Read asks for rows [FirstRow, FirstRow+Rows) of a row-major matrix.
type Read struct {
	Layer, Expert int // Expert -1: the shared one
	Part          Part
	FirstRow      int64
	Rows, Cols    int64
}

// Weights are a host's own, in fp32. Read is called from several goroutines at once.
type Weights interface {
	Read(read Read, dst []float32) error
}

// Routing is how router logits become the experts of a token and their weights.
type Routing int32

const (
	SoftmaxTopK    Routing = C.MOERT_ROUTING_SOFTMAX_TOPK    // softmax over all, then the k highest (Qwen, OLMoE)
	TopKSoftmax    Routing = C.MOERT_ROUTING_TOPK_SOFTMAX    // the k highest, then softmax over them (Mixtral)
	SigmoidGrouped Routing = C.MOERT_ROUTING_SIGMOID_GROUPED // sigmoid + bias, best groups, top-k (DeepSeek-V3)
	SparseMixer    Routing = C.MOERT_ROUTING_SPARSEMIXER     // two masked-softmax picks (Phi-3.5-MoE)
	External       Routing = C.MOERT_ROUTING_EXTERNAL        // the host's own: no gate is read, layer calls bring their routing

	SqrtSoftplusGrouped Routing = C.MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED // as SigmoidGrouped (DeepSeek-V4)
	TopKSigmoid         Routing = C.MOERT_ROUTING_TOPK_SIGMOID          // the k highest, weights their sigmoids (Llama-4)
)

// Activation of the gated linear unit.
type Activation int32

const (
	Silu     Activation = C.MOERT_SILU
	Gelu     Activation = C.MOERT_GELU
	GeluTanh Activation = C.MOERT_GELU_TANH
	Relu2    Activation = C.MOERT_RELU2
)

// LayerSpec is one MoE layer: moert_layer_spec. Zero groups, scaling and alpha mean 1.
type LayerSpec struct {
	ModelLayer, NumExperts, TopK             int
	Hidden, Intermediate, SharedIntermediate int64
	SharedGate, Renormalize, SelectionBias   bool
	Routing                                  Routing
	Activation                               Activation
	Groups, TopGroups                        int
	Scaling                                  float32
	LogitBias, WeightInput, ExpertScales     bool
	Ungated, ExpertBias                      bool
	Alpha, Limit, UpOffset                   float32 // of the activation
}

// Source is where experts come from. Close it when engines have been made of it.
type Source struct {
	handle *C.moert_source
}

// Open opens a checkpoint directory as published on Hugging Face.
func Open(modelDir string) (*Source, error) {
	dir := C.CString(modelDir)
	defer C.free(unsafe.Pointer(dir))
	var handle *C.moert_source
	err := check(func(err **C.moert_error) C.moert_code { return C.moert_source_open(dir, nil, &handle, err) })
	if err != nil {
		return nil, err
	}
	return &Source{handle}, nil
}

// OpenPack opens an expert pack, as moert-pack writes them.
func OpenPack(packDir string) (*Source, error) {
	dir := C.CString(packDir)
	defer C.free(unsafe.Pointer(dir))
	var handle *C.moert_source
	err := check(func(err **C.moert_error) C.moert_code { return C.moert_source_open_pack(dir, &handle, err) })
	if err != nil {
		return nil, err
	}
	return &Source{handle}, nil
}

// layerSpecs has one more than there are layers: never an empty slice.
func layerSpecs(layers []LayerSpec) []C.moert_layer_spec {
	specs := make([]C.moert_layer_spec, len(layers)+1)
	for i, l := range layers {
		C.moert_layer_spec_init(&specs[i], C.sizeof_moert_layer_spec)
		specs[i].model_layer = C.int32_t(l.ModelLayer)
		specs[i].num_experts = C.int32_t(l.NumExperts)
		specs[i].top_k = C.int32_t(l.TopK)
		specs[i].hidden = C.int64_t(l.Hidden)
		specs[i].intermediate = C.int64_t(l.Intermediate)
		specs[i].shared_intermediate = C.int64_t(l.SharedIntermediate)
		specs[i].shared_gate = flag(l.SharedGate)
		specs[i].renormalize = flag(l.Renormalize)
		specs[i].selection_bias = flag(l.SelectionBias)
		specs[i].routing = C.moert_routing_kind(l.Routing)
		specs[i].activation = C.moert_activation(l.Activation)
		if l.Groups != 0 {
			specs[i].num_groups = C.int32_t(l.Groups)
		}
		if l.TopGroups != 0 {
			specs[i].top_groups = C.int32_t(l.TopGroups)
		}
		if l.Scaling != 0 {
			specs[i].scaling = C.float(l.Scaling)
		}
		specs[i].logit_bias = flag(l.LogitBias)
		specs[i].weight_input = flag(l.WeightInput)
		specs[i].expert_scales = flag(l.ExpertScales)
		specs[i].ungated = flag(l.Ungated)
		specs[i].expert_bias = flag(l.ExpertBias)
		if l.Alpha != 0 {
			specs[i].activation_alpha = C.float(l.Alpha)
		}
		specs[i].activation_limit = C.float(l.Limit)
		specs[i].up_offset = C.float(l.UpOffset)
	}
	return specs
}

// NewSource makes a source over a host's own weights.
func NewSource(name string, layers []LayerSpec, weights Weights) (*Source, error) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	specs := layerSpecs(layers)
	callbacks := (*C.moert_source_callbacks)(C.calloc(1, C.sizeof_moert_source_callbacks))
	defer C.free(unsafe.Pointer(callbacks))
	h := cgo.NewHandle(weights)
	C.bridge_callbacks(callbacks, C.uintptr_t(h))
	var handle *C.moert_source
	err := check(func(err **C.moert_error) C.moert_code {
		return C.moert_source_create(cName, &specs[0], C.uint64_t(len(layers)), callbacks, &handle, err)
	})
	if err != nil {
		h.Delete() // the library did not take it
		return nil, err
	}
	return &Source{handle}, nil
}

// Close gives the source back; engines keep their own reference.
func (s *Source) Close() {
	C.moert_source_destroy(s.handle)
	s.handle = nil
}

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

//export goRead
func goRead(handle C.uintptr_t, r *C.moert_read, failure *C.moert_failure) C.moert_code {
	return calling("Weights.Read", failure, func() error {
		weights := cgo.Handle(handle).Value().(Weights)
		dst := unsafe.Slice((*float32)(r.dst.data), int64(r.dst.rows*r.dst.cols))
		read := Read{int(r.layer), int(r.expert), Part(r.part), int64(r.first_row), int64(r.dst.rows),
			int64(r.dst.cols)}
		return weights.Read(read, dst)
	})
}

// calling runs a reader of the program's for the library. An error becomes the failure's text; so does
// a panic, which must not unwind into C.
func calling(name string, failure *C.moert_failure, read func() error) (code C.moert_code) {
	fail := func(message string) {
		text := C.CString(message)
		C.moert_failure_set(failure, text)
		C.free(unsafe.Pointer(text))
	}
	defer func() {
		if p := recover(); p != nil {
			fail(fmt.Sprint(name, " panicked: ", p))
			code = C.MOERT_INTERNAL
		}
	}()
	if err := read(); err != nil {
		fail(err.Error())
		return C.MOERT_DATA_LOSS
	}
	return C.MOERT_OK
}

//export goDestroy
func goDestroy(handle C.uintptr_t) { cgo.Handle(handle).Delete() }
