package moert

/*
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"fmt"
	"runtime/cgo"
	"strings"
	"unsafe"
)

// StrategyKey is a key of a strategy's spec and what it means.
type StrategyKey struct{ Name, Meaning string }

// StrategyInfo is a strategy of this process.
type StrategyInfo struct {
	Name, Summary string
	Keys          []StrategyKey
}

// Strategies are all of this process, the host's included.
func Strategies() ([]StrategyInfo, error) {
	var all []StrategyInfo
	for i := C.int32_t(0); i < C.moert_strategy_count(); i++ {
		var c C.moert_strategy_info
		C.moert_strategy_info_init(&c, C.sizeof_moert_strategy_info)
		err := check(func(err **C.moert_error) C.moert_code { return C.moert_strategy_at(i, &c, err) })
		if err != nil {
			return nil, err
		}
		info := StrategyInfo{Name: C.GoString(c.name), Summary: C.GoString(c.summary)}
		for _, line := range strings.Split(C.GoString(c.keys), "\n") {
			if colon := strings.Index(line, ":"); colon >= 0 {
				info.Keys = append(info.Keys, StrategyKey{line[:colon], strings.TrimSpace(line[colon+1:])})
			}
		}
		all = append(all, info)
	}
	return all, nil
}

// Params are the values of a spec's keys.
type Params struct{ handle *C.moert_strategy_params }

// Get is the text behind "key="; false when the spec has no such key. For the factory's call only.
func (p Params) Get(key string) (string, bool) {
	cKey := C.CString(key)
	defer C.free(unsafe.Pointer(cKey))
	value := C.moert_strategy_params_get(p.handle, cKey)
	return C.GoString(value), value != nil
}

// Factory makes the policies of a spec that names the strategy (see Observer...), and the spec that
// decides what they leave. It may be called by several goroutines at once. An error refuses the spec.
type Factory func(params Params) (base string, policies any, err error)

// RegisterStrategy adds a strategy for the rest of the process: its name then works wherever a spec does.
// Names and keys are of a-z, 0-9, '-' and '_'. AlreadyExists for a name that is taken.
func RegisterStrategy(info StrategyInfo, factory Factory) error {
	c := (*C.moert_strategy_info)(C.calloc(1, C.sizeof_moert_strategy_info))
	defer C.free(unsafe.Pointer(c))
	C.moert_strategy_info_init(c, C.sizeof_moert_strategy_info)
	var keys []string
	for _, key := range info.Keys {
		keys = append(keys, key.Name+": "+key.Meaning)
	}
	for field, value := range map[**C.char]string{&c.name: info.Name, &c.summary: info.Summary,
		&c.keys: strings.Join(keys, "\n")} {
		*field = C.CString(value)
		defer C.free(unsafe.Pointer(*field))
	}
	if len(keys) == 0 {
		c.keys = nil // freed above by the evaluated pointer
	}
	handle := cgo.NewHandle(factory) // the library's for the rest of the process
	err := check(func(err **C.moert_error) C.moert_code {
		return C.bridge_register(c, C.uintptr_t(handle), err)
	})
	if err != nil {
		handle.Delete()
	}
	return err
}

// fillPolicies makes C's policies of a host's. The handle is the library's then.
func fillPolicies(c *C.moert_policies, policies any) (cgo.Handle, error) {
	asked, nextGate, forward := seams(policies)
	if asked == 0 {
		return 0, fmt.Errorf("a %T has none of the methods Observe, Rule, Rank, Capacity, Victim, Precision, "+
			"Transfer, Place", policies)
	}
	handle := cgo.NewHandle(policies)
	C.bridge_policies(c, C.uintptr_t(handle), asked, nextGate, forward)
	return handle, nil
}

// goStrategy returns the base spec, which the caller frees; nil after a failure.
//
//export goStrategy
func goStrategy(handle C.uintptr_t, params *C.moert_strategy_params, policies *C.moert_policies,
	failure *C.moert_failure) (base *C.char) {
	fail := func(message string) {
		text := C.CString(message)
		C.moert_failure_set(failure, text)
		C.free(unsafe.Pointer(text))
		base = nil
	}
	defer func() { // a panic must not unwind into C
		if p := recover(); p != nil {
			fail(fmt.Sprint("the strategy's factory panicked: ", p))
		}
	}()
	spec, made, err := cgo.Handle(handle).Value().(Factory)(Params{params})
	if err == nil {
		_, err = fillPolicies(policies, made)
	}
	if err != nil {
		fail(err.Error())
		return nil
	}
	return C.CString(spec)
}
