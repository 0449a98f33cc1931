package moert

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// Candidate is one expert that may be evicted; times are layer calls.
type Candidate struct {
	Layer, Expert            int
	LastUsed, Inserted, Uses int64
	UnusedPrefetch           bool
}

// Policies are a host's decisions. Methods are called one at a time while the engine is locked: they
// must not call it. A negative victim, and a nil ranking, leave the decision to the strategy.
type Policies interface {
	// Observe hears every layer call's routing: tokens of each expert.
	Observe(layer int, counts []int32)
	// Victim returns the index of the candidate that leaves.
	Victim(candidates []Candidate, forPrefetch bool) int
	// Rank returns experts of the target layer to prefetch, best first.
	Rank(targetLayer int, counts []int32) []int32
}

//export goPolicy
func goPolicy(handle C.uintptr_t, what C.int, first, second, third unsafe.Pointer, capacity C.int32_t,
	count *C.int32_t) (code C.moert_code) {
	defer func() {
		if recover() != nil {
			code = C.MOERT_INTERNAL
		}
	}()
	policies := cgo.Handle(handle).Value().(Policies)
	counts := func(r *C.moert_routing_view) []int32 {
		return unsafe.Slice((*int32)(unsafe.Pointer(r.counts)), int(r.num_experts))
	}
	switch what {
	case 0:
		policies.Observe(int((*C.moert_policy_context)(first).layer), counts((*C.moert_routing_view)(second)))
	case 1:
		s := (*C.moert_victim_snapshot)(first)
		candidates := make([]Candidate, int(s.num_candidates))
		for i, c := range unsafe.Slice(s.candidates, int(s.num_candidates)) {
			candidates[i] = Candidate{int(c.layer), int(c.expert), int64(c.last_used), int64(c.inserted),
				int64(c.uses), c.unused_prefetch != 0}
		}
		victim := policies.Victim(candidates, s.for_prefetch != 0)
		if victim < 0 {
			return C.MOERT_UNIMPLEMENTED
		}
		*(*int64)(third) = int64(victim)
	case 2:
		s := (*C.moert_prefetch_snapshot)(first)
		ranked := policies.Rank(int(s.target_layer), counts(&s.routing))
		if ranked == nil {
			return C.MOERT_UNIMPLEMENTED
		}
		*count = C.int32_t(copy(unsafe.Slice((*int32)(second), int(capacity)), ranked))
	}
	return C.MOERT_OK
}
