package moert

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"
)

// Policies are a host's decisions. Options.Policies has one or more of the interfaces below; what it has
// no method for stays the strategy's. Methods are called one at a time while the engine is locked: they
// must not call it. Slices are the library's, for the call. A false `ok` leaves a decision to the
// strategy; it is counted (Stats.PolicyFallbacks), as are panics and answers out of range. With rules,
// precision or placement an engine is not Exact: they can reach the output.

// Observer hears every layer call's routing.
type Observer interface {
	Observe(context PolicyContext, routing RoutingView)
}

// Ruler changes the rule by which tokens are routed; own is the strategy's.
type Ruler interface {
	Rule(context PolicyContext, own Rule) (rule Rule, ok bool)
}

// Ranker names experts of the target layer to prefetch, best first.
type Ranker interface {
	Rank(prefetch Prefetch) (ranked []Prediction, ok bool)
}

// GateReader is a Ranker that may ask for the next gate's scores (asked once).
type GateReader interface {
	WantsNextGate() bool
}

// ForwardReader is a Ranker that may ask for scores of what StepOptions.PredictNext tells (asked once).
type ForwardReader interface {
	WantsResidentForward() bool
}

// Sizer gives each layer its slots; their sum is at most Sizes.Slots.
type Sizer interface {
	Capacity(sizes Sizes) (capacity []int32, ok bool)
}

// Resizer says at the beginning of a step whether it wants to be asked for new capacities.
type Resizer interface {
	WantsCapacity(context PolicyContext) bool
}

// Evictor chooses the candidate that leaves; -1 refuses, which only a prefetch may be.
type Evictor interface {
	Victim(context PolicyContext, candidates []Candidate, forPrefetch bool) (index int, ok bool)
}

// Mover hears of experts that come and go.
type Mover interface {
	Inserted(layer, expert int, prefetch bool)
	Evicted(layer, expert int)
}

// Starter names experts, by index over all layers, that are high from the start where every expert is
// resident in one of two versions: at most highCapacity[l] of layer l.
type Starter interface {
	InitialHigh(highCapacity []int32, totalExperts int64) []int64
}

// Valuer says what each expert is worth in high: a smaller budget demotes those worth least.
type Valuer interface {
	Worth(precision Precision) (worth []float64, ok bool)
}

// Upgrader says whether lower versions that a call used shall be replaced by the best.
type Upgrader interface {
	Upgrades(context PolicyContext) bool
}

// Backfiller says whether what the CPU computed shall be brought while the link is idle, or, with
// freeSlots, into slots that nobody holds.
type Backfiller interface {
	Backfills(context PolicyContext, freeSlots bool) bool
}

// Promoter names experts, by index over all layers, to promote (best first) and to demote.
type Promoter interface {
	Precision(precision Precision) (promote, demote []int64, ok bool)
}

// Transferrer chooses the version a load should bring, 0 the one with most bits.
type Transferrer interface {
	Transfer(transfer Transfer) (version int, ok bool)
}

// Placer makes one decision a miss.
type Placer interface {
	Place(context PolicyContext, misses []Miss, linkBusyNs int64) (placements []Placement, ok bool)
}

// PolicyContext is when and where a decision is asked.
type PolicyContext struct {
	Step, NowNs int64
	Layer       int
	Phase       Phase
	RequestIDs  []int64 // one a row of the step; empty if not given
}

// RoutingView is the true routing of a layer call. Scores is nil when the host gave a routing without.
type RoutingView struct {
	Tokens, TopK int
	IDs          []int32   // [tokens, top-k], highest weight first
	Weights      []float32 // the same
	Scores       []float32 // [tokens, experts]
	Counts       []int32   // [experts], tokens of each
}

// Rule of routing: the model's own, or the expert-cache rule, which is lossy.
type Rule struct {
	ExpertCache                       bool
	Alpha, MaxSlotShare, MaxMassShare float32
	SecondPass, OwnScoreWeights       bool
}

// Prefetch is what a prediction is made from; flags are 0 or 1, one an expert of the target layer.
type Prefetch struct {
	Context                    PolicyContext
	Routing                    RoutingView
	TargetLayer                int
	PredictedScores            []float32 // [tokens, experts of the target], or nil
	Resident, Usable, InFlight []uint8
	TargetCapacity             int64 // slots
	WindowNs, TransferNs       int64 // until the target asks; one of its experts on the link
}

// Prediction is an expert of the target layer; a higher score is fetched earlier. Tokens: expected to
// use it, 0 if that cannot be told.
type Prediction struct {
	Expert int32
	Score  float32
	Tokens int32
}

// Sizes is what capacities are decided from.
type Sizes struct {
	Slots    int64
	Layers   int
	Prefetch []PrefetchOutlook // by layer; empty: no prefetch
}

// PrefetchOutlook is what prefetching can do for a layer, as measured: the share of its lookups that
// predictions name, and the transfers that fit before it asks.
type PrefetchOutlook struct {
	Recall, Transfers float64
}

// Candidate is one expert that may be evicted; times are layer calls.
type Candidate struct {
	Layer, Expert            int
	LastUsed, Inserted, Uses int64
	Tokens                   int // of the last call that used it
	UnusedPrefetch           bool
}

// Precision is what promotions are decided from: experts of all layers, one after the other.
type Precision struct {
	Context      PolicyContext
	Selections   []int64 // tokens since the last call
	High         []uint8 // 1: the high version is there or on its way
	HighCapacity []int32 // [layers]
}

// Transfer is why bytes are about to be moved.
type Transfer struct {
	Context                     PolicyContext
	Expert, Tokens, NumVersions int
	LayerTokens                 int64
	Prefetch                    bool
}

// Miss is an expert that is needed and not there. CPUNs is negative where there is no CPU beside the
// fast tier.
type Miss struct {
	Expert, Tokens       int
	Mass                 float32
	Bytes, LoadNs, CPUNs int64
	Arriving             bool // a prefetch of it is on its way
}

// Placement of a miss.
type Placement int32

const (
	PlaceLoad Placement = C.MOERT_LOAD_MISS
	PlaceCPU  Placement = C.MOERT_COMPUTE_ON_CPU
)

// seams is which decisions a value makes, as bits of bridge_question, and whether it wants the next gate.
func seams(policies any) (asked C.uint32_t, nextGate, forward C.int32_t) {
	has := func(what uint, ok bool) {
		if ok {
			asked |= 1 << what
		}
	}
	_, ok := policies.(Observer)
	has(C.BRIDGE_OBSERVE, ok)
	_, ok = policies.(Ruler)
	has(C.BRIDGE_RULE, ok)
	_, ok = policies.(Ranker)
	has(C.BRIDGE_RANK, ok)
	_, ok = policies.(Sizer)
	has(C.BRIDGE_CAPACITY, ok)
	_, ok = policies.(Resizer)
	has(C.BRIDGE_RESIZE, ok)
	_, ok = policies.(Starter)
	has(C.BRIDGE_INITIAL, ok)
	_, ok = policies.(Valuer)
	has(C.BRIDGE_WORTH, ok)
	_, ok = policies.(Upgrader)
	has(C.BRIDGE_UPGRADES, ok)
	_, ok = policies.(Backfiller)
	has(C.BRIDGE_BACKFILLS, ok)
	_, ok = policies.(Evictor)
	has(C.BRIDGE_VICTIM, ok)
	_, ok = policies.(Mover)
	has(C.BRIDGE_INSERTED, ok)
	has(C.BRIDGE_EVICTED, ok)
	_, ok = policies.(Promoter)
	has(C.BRIDGE_PRECISION, ok)
	_, ok = policies.(Transferrer)
	has(C.BRIDGE_TRANSFER, ok)
	_, ok = policies.(Placer)
	has(C.BRIDGE_PLACEMENT, ok)
	if gate, ok := policies.(GateReader); ok {
		nextGate = flag(gate.WantsNextGate())
	}
	if reader, ok := policies.(ForwardReader); ok {
		forward = flag(reader.WantsResidentForward())
	}
	return asked, nextGate, forward
}

func array[T any](data unsafe.Pointer, count int) []T {
	if data == nil || count <= 0 {
		return nil
	}
	return unsafe.Slice((*T)(data), count)
}

func contextOf(c *C.moert_policy_context) PolicyContext {
	return PolicyContext{int64(c.step), int64(c.now_ns), int(c.layer), Phase(c.phase),
		array[int64](unsafe.Pointer(c.request_ids), int(c.num_request_ids))}
}

func routingOf(r *C.moert_routing_view) RoutingView {
	slots, scores := int(r.tokens)*int(r.top_k), int(r.tokens)*int(r.num_experts)
	return RoutingView{int(r.tokens), int(r.top_k), array[int32](unsafe.Pointer(r.ids), slots),
		array[float32](unsafe.Pointer(r.weights), slots), array[float32](unsafe.Pointer(r.scores), scores),
		array[int32](unsafe.Pointer(r.counts), int(r.num_experts))}
}

func precisionOf(s *C.moert_precision_snapshot) Precision {
	total := int(s.total_experts)
	return Precision{contextOf(s.context), array[int64](unsafe.Pointer(s.selections), total),
		array[uint8](unsafe.Pointer(s.high), total),
		array[int32](unsafe.Pointer(s.high_capacity), int(s.num_layers))}
}

//export goPolicy
func goPolicy(handle C.uintptr_t, what C.int, a, b, c, d unsafe.Pointer, n C.int32_t) (code C.moert_code) {
	defer func() { // a panic must not unwind into C
		if recover() != nil {
			code = C.MOERT_INTERNAL
		}
	}()
	const unanswered = C.MOERT_UNIMPLEMENTED
	policies := cgo.Handle(handle).Value()
	switch what {
	case C.BRIDGE_OBSERVE:
		policies.(Observer).Observe(contextOf((*C.moert_policy_context)(a)), routingOf((*C.moert_routing_view)(b)))
	case C.BRIDGE_RULE:
		own := (*C.moert_routing_rule)(b)
		rule, ok := policies.(Ruler).Rule(contextOf((*C.moert_policy_context)(a)), Rule{
			own.kind == C.MOERT_RULE_EXPERT_CACHE, float32(own.alpha), float32(own.max_slot_share),
			float32(own.max_mass_share), own.second_pass != 0, own.own_score_weights != 0})
		if !ok {
			return unanswered
		}
		own.kind = C.MOERT_RULE_TOPK
		if rule.ExpertCache {
			own.kind = C.MOERT_RULE_EXPERT_CACHE
			own.alpha = C.float(rule.Alpha)
			own.max_slot_share, own.max_mass_share = C.float(rule.MaxSlotShare), C.float(rule.MaxMassShare)
			own.second_pass, own.own_score_weights = flag(rule.SecondPass), flag(rule.OwnScoreWeights)
		}
	case C.BRIDGE_RANK:
		s := (*C.moert_prefetch_snapshot)(a)
		targets := int(s.target_experts)
		ranked, ok := policies.(Ranker).Rank(Prefetch{contextOf(s.context), routingOf(s.routing), int(s.target_layer),
			array[float32](unsafe.Pointer(s.predicted_scores), int(s.routing.tokens)*targets),
			array[uint8](unsafe.Pointer(s.resident), targets), array[uint8](unsafe.Pointer(s.usable), targets),
			array[uint8](unsafe.Pointer(s.in_flight), targets), int64(s.target_capacity), int64(s.window_ns),
			int64(s.transfer_ns)})
		if !ok {
			return unanswered
		}
		*(*C.int32_t)(c) = C.int32_t(copy(array[Prediction](b, int(n)), ranked))
	case C.BRIDGE_CAPACITY:
		s := (*C.moert_capacity_snapshot)(a)
		layers := int(s.num_layers)
		capacity, ok := policies.(Sizer).Capacity(Sizes{int64(s.slots), layers,
			array[PrefetchOutlook](unsafe.Pointer(s.prefetch), layers)})
		if !ok {
			return unanswered
		}
		if len(capacity) != layers {
			return C.MOERT_INVALID_ARGUMENT
		}
		copy(array[int32](b, layers), capacity)
	case C.BRIDGE_RESIZE:
		*(*C.int32_t)(b) = flag(policies.(Resizer).WantsCapacity(contextOf((*C.moert_policy_context)(a))))
	case C.BRIDGE_VICTIM:
		s := (*C.moert_victim_snapshot)(a)
		candidates := make([]Candidate, int(s.num_candidates))
		for i, v := range unsafe.Slice(s.candidates, int(s.num_candidates)) {
			candidates[i] = Candidate{int(v.layer), int(v.expert), int64(v.last_used), int64(v.inserted),
				int64(v.uses), int(v.tokens), v.unused_prefetch != 0}
		}
		index, ok := policies.(Evictor).Victim(contextOf(s.context), candidates, s.for_prefetch != 0)
		if !ok {
			return unanswered
		}
		*(*int64)(b) = int64(index)
	case C.BRIDGE_INSERTED:
		policies.(Mover).Inserted(int(*(*int32)(a)), int(*(*int32)(b)), n != 0)
	case C.BRIDGE_EVICTED:
		policies.(Mover).Evicted(int(*(*int32)(a)), int(*(*int32)(b)))
	case C.BRIDGE_INITIAL:
		total := *(*int64)(b)
		high := policies.(Starter).InitialHigh(array[int32](a, int(n)), total)
		*(*int64)(d) = int64(copy(array[int64](c, int(total)), high))
	case C.BRIDGE_WORTH:
		s := (*C.moert_precision_snapshot)(a)
		worth, ok := policies.(Valuer).Worth(precisionOf(s))
		if !ok {
			return unanswered
		}
		if len(worth) != int(s.total_experts) {
			return C.MOERT_INVALID_ARGUMENT
		}
		copy(array[float64](b, int(s.total_experts)), worth)
	case C.BRIDGE_UPGRADES:
		*(*C.int32_t)(b) = flag(policies.(Upgrader).Upgrades(contextOf((*C.moert_policy_context)(a))))
	case C.BRIDGE_BACKFILLS:
		*(*C.int32_t)(b) = flag(policies.(Backfiller).Backfills(contextOf((*C.moert_policy_context)(a)), n != 0))
	case C.BRIDGE_PRECISION:
		s := (*C.moert_precision_snapshot)(a)
		total := int(s.total_experts)
		promote, demote, ok := policies.(Promoter).Precision(precisionOf(s))
		if !ok {
			return unanswered
		}
		counts := array[*int64](d, 2)
		*counts[0] = int64(copy(array[int64](b, total), promote))
		*counts[1] = int64(copy(array[int64](c, total), demote))
	case C.BRIDGE_TRANSFER:
		s := (*C.moert_transfer_snapshot)(a)
		version, ok := policies.(Transferrer).Transfer(Transfer{contextOf(s.context), int(s.expert), int(s.tokens),
			int(s.num_versions), int64(s.layer_tokens), s.prefetch != 0})
		if !ok {
			return unanswered
		}
		*(*int32)(b) = int32(version)
	case C.BRIDGE_PLACEMENT:
		s := (*C.moert_placement_snapshot)(a)
		misses := make([]Miss, int(s.num_misses))
		for i, m := range unsafe.Slice(s.misses, int(s.num_misses)) {
			misses[i] = Miss{int(m.expert), int(m.tokens), float32(m.mass), int64(m.bytes), int64(m.load_ns),
				int64(m.cpu_ns), m.arriving != 0}
		}
		places, ok := policies.(Placer).Place(contextOf(s.context), misses, int64(s.link_busy_ns))
		if !ok {
			return unanswered
		}
		if len(places) != len(misses) {
			return C.MOERT_INVALID_ARGUMENT
		}
		copy(array[Placement](b, len(misses)), places)
	}
	return C.MOERT_OK
}
