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

// RecordPart is one part of every expert of a layer: in a file, or brought by Records.
type RecordPart struct {
	Layer     int
	Bytes     int64 // of one expert's
	Alignment int64 // of its address in a slot: a power of two up to 4096; 0: 1
	InFile    bool
	File      int   // index into the files
	Offset    int64 // of expert 0 in it; others follow
}

// Records read the parts that are in no file. ReadPart is called from several goroutines at once.
type Records interface {
	ReadPart(layer, expert, part int, dst []byte) error
}

// NewRecordSource makes a source of records in the host's own format; layers route External. Products
// over them are the host's: Step.Fetch. records is nil where files have all parts.
func NewRecordSource(name string, layers []LayerSpec, parts []RecordPart, files []string,
	records Records) (*Source, error) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	specs := layerSpecs(layers)
	cParts := make([]C.moert_opaque_part, len(parts)+1) // one more: never an empty slice
	for i, p := range parts {
		C.moert_opaque_part_init(&cParts[i], C.sizeof_moert_opaque_part)
		cParts[i].layer = C.int32_t(p.Layer)
		cParts[i].bytes = C.int64_t(p.Bytes)
		if p.Alignment != 0 {
			cParts[i].alignment = C.int64_t(p.Alignment)
		}
		if p.InFile {
			cParts[i].file = C.int32_t(p.File)
			cParts[i].offset = C.int64_t(p.Offset)
		}
	}
	options := (*C.moert_opaque_options)(C.calloc(1, C.sizeof_moert_opaque_options))
	defer C.free(unsafe.Pointer(options))
	h := cgo.NewHandle(records)
	reads := C.int32_t(0)
	if records != nil {
		reads = 1
	}
	C.bridge_records(options, C.uintptr_t(h), reads)
	paths := (**C.char)(C.calloc(C.size_t(len(files)+1), C.size_t(unsafe.Sizeof(cName))))
	defer C.free(unsafe.Pointer(paths))
	for i, file := range files {
		path := C.CString(file)
		defer C.free(unsafe.Pointer(path))
		unsafe.Slice(paths, len(files))[i] = path
	}
	options.files = paths
	options.num_files = C.int64_t(len(files))
	var handle *C.moert_source
	err := check(func(err **C.moert_error) C.moert_code {
		return C.moert_source_create_opaque(cName, &specs[0], C.uint64_t(len(layers)), &cParts[0],
			C.uint64_t(len(parts)), options, &handle, err)
	})
	if err != nil {
		h.Delete() // the library did not take it
		return nil, err
	}
	return &Source{handle}, nil
}

//export goReadPart
func goReadPart(handle C.uintptr_t, layer, expert, part C.int32_t, dst unsafe.Pointer, bytes C.int64_t,
	failure *C.moert_failure) C.moert_code {
	return calling("Records.ReadPart", failure, func() error {
		records := cgo.Handle(handle).Value().(Records)
		return records.ReadPart(int(layer), int(expert), int(part), unsafe.Slice((*byte)(dst), int64(bytes)))
	})
}

// Shard is a part of every layer, for expert and tensor parallelism: outputs are partial sums. Zeros
// mean all.
type Shard struct {
	FirstExpert, NumExperts   int64
	Experts                   [][]int32 // of each layer its experts, ascending, in place of the range
	FirstChannel, NumChannels int64     // of the intermediate dimension
	NoSharedExperts           bool
}

// fill returns the list that the struct points to: free it.
func (s *Shard) fill(c *C.moert_shard) unsafe.Pointer {
	C.moert_shard_init(c, C.sizeof_moert_shard)
	c.first_expert, c.num_experts = C.int64_t(s.FirstExpert), C.int64_t(s.NumExperts)
	c.first_channel, c.num_channels = C.int64_t(s.FirstChannel), C.int64_t(s.NumChannels)
	if s.NoSharedExperts {
		c.shared_experts = 0
	}
	var list []int32
	for _, layer := range s.Experts {
		list = append(append(list, int32(len(layer))), layer...)
	}
	if len(list) == 0 {
		return nil
	}
	memory := C.malloc(C.size_t(4 * len(list)))
	copy(unsafe.Slice((*int32)(memory), len(list)), list)
	c.expert_list, c.expert_list_size = (*C.int32_t)(memory), C.int64_t(len(list))
	return memory
}

// CheckShards returns an error that names what is missing or twice, unless the shards own everything
// exactly once.
func (s *Source) CheckShards(shards []Shard) error {
	all := (*C.moert_shard)(C.calloc(C.size_t(len(shards)+1), C.sizeof_moert_shard))
	defer C.free(unsafe.Pointer(all))
	for i := range shards {
		defer C.free(shards[i].fill(&unsafe.Slice(all, len(shards))[i]))
	}
	return check(func(err **C.moert_error) C.moert_code {
		return C.moert_shards_check(s.handle, all, C.int64_t(len(shards)), err)
	})
}

// Slots are experts of one layer, pinned where they lie until Release, or until their step ends.
type Slots struct {
	step    *Step
	layer   int
	experts int
	c       C.moert_slots
}

// Fetch loads and pins the experts named by ids, rows x k (-1: none), for hosts that compute the
// products themselves.
func (s *Step) Fetch(layer int, ids []int32) (*Slots, error) {
	if len(ids) == 0 || len(ids)%s.rows != 0 {
		return nil, &Error{InvalidArgument, "Fetch", fmt.Sprintf("%d ids for %d rows", len(ids), s.rows)}
	}
	spec, err := s.engine.layer(layer)
	if err != nil {
		return nil, err
	}
	slots := &Slots{step: s, layer: layer, experts: int(spec.num_experts)}
	var c C.moert_slots
	C.moert_slots_init(&c, C.sizeof_moert_slots)
	err = s.check(func(step *C.moert_step, err **C.moert_error) C.moert_code {
		return C.bridge_fetch(step, C.int32_t(layer), (*C.int32_t)(unsafe.Pointer(&ids[0])), C.int64_t(s.rows),
			C.int64_t(len(ids)/s.rows), &c, err)
	})
	if err != nil {
		return nil, err
	}
	slots.c = c
	return slots, nil
}

// Slot of an expert; -1: it was not asked for, or the slots were released.
func (s *Slots) Slot(expert int) int {
	if s.step == nil || s.step.guard.isClosed() || expert < 0 || expert >= s.experts {
		return -1
	}
	return int(unsafe.Slice(s.c.slot_of_expert, s.experts)[expert])
}

// Part is the bytes of one part of an expert in place: read only, until Release. Nil: see Slot; or the
// slots are in device memory.
func (s *Slots) Part(expert, part int) []byte {
	slot := s.Slot(expert)
	if slot < 0 || part < 0 || part >= int(s.c.parts) || s.c.device_slot_of_expert != nil {
		return nil
	}
	at := unsafe.Add(s.c.base[part], slot*int(s.c.stride[part]))
	return unsafe.Slice((*byte)(at), int(s.c.bytes[part]))
}

// Release ends every fetch of this layer in this step.
func (s *Slots) Release() error {
	step := s.step
	s.step = nil
	if step == nil || step.guard.isClosed() {
		return nil
	}
	return step.check(func(step *C.moert_step, err **C.moert_error) C.moert_code {
		return C.moert_slots_release(step, C.int32_t(s.layer), err)
	})
}
