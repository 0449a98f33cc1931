// Package moert links libmoert through its C ABI.
//
// No Go pointer is stored in C: callbacks carry an integer handle (runtime/cgo.Handle) to one exported
// trampoline each. Engines may be used from any number of goroutines.
package moert

/*
#cgo pkg-config: moert
#cgo CFLAGS: -Wall -Wextra -Wno-unused-parameter
#include "bridge.h"
*/
import "C"

import "fmt"

// Code is a moert_code: Abseil's status codes, negated.
type Code int32

const (
	Cancelled          Code = C.MOERT_CANCELLED
	Unknown            Code = C.MOERT_UNKNOWN
	InvalidArgument    Code = C.MOERT_INVALID_ARGUMENT
	DeadlineExceeded   Code = C.MOERT_DEADLINE_EXCEEDED
	NotFound           Code = C.MOERT_NOT_FOUND
	AlreadyExists      Code = C.MOERT_ALREADY_EXISTS
	PermissionDenied   Code = C.MOERT_PERMISSION_DENIED
	ResourceExhausted  Code = C.MOERT_RESOURCE_EXHAUSTED
	FailedPrecondition Code = C.MOERT_FAILED_PRECONDITION
	Aborted            Code = C.MOERT_ABORTED
	OutOfRange         Code = C.MOERT_OUT_OF_RANGE
	Unimplemented      Code = C.MOERT_UNIMPLEMENTED
	Internal           Code = C.MOERT_INTERNAL
	Unavailable        Code = C.MOERT_UNAVAILABLE
	DataLoss           Code = C.MOERT_DATA_LOSS
)

func (c Code) String() string { return C.GoString(C.moert_code_name(C.moert_code(c))) }

// Error is a failed call: its code, the function that failed, and what is wrong.
type Error struct {
	Code    Code
	Origin  string
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %s", e.Origin, e.Code, e.Message) }

// check calls a function of the C API and turns its error object, which it frees, into a Go error.
func check(call func(err **C.moert_error) C.moert_code) error {
	var err *C.moert_error
	code := call(&err)
	if code == C.MOERT_OK {
		return nil
	}
	defer C.moert_error_destroy(err)
	return &Error{Code(code), C.GoString(C.moert_error_origin(err)), C.GoString(C.moert_error_message(err))}
}
