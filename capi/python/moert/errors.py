"""Failed calls as exceptions."""
import ctypes as c

from ._c import lib


class Error(Exception):
    """A failed call: `code` ("INVALID_ARGUMENT"), `origin` (the C function), `message`."""

    def __init__(self, code, origin, message):
        super().__init__(f"{origin}: {code}: {message}")
        self.code, self.origin, self.message = code, origin, message

    def __reduce__(self):
        return type(self), (self.code, self.origin, self.message)


def check(function, *arguments):
    """Calls a C function that returns a code, and raises what it says."""
    error = c.c_void_p()
    code = function(*arguments, c.byref(error))
    if code == 0:
        return
    raised = Error(lib.moert_code_name(code).decode(), lib.moert_error_origin(error).decode(),
                   lib.moert_error_message(error).decode())
    lib.moert_error_destroy(error)
    raise raised


class _Owned:
    """A handle, destroyed with its last reference: calls under way in other threads have one."""

    def __init__(self, handle, destroy):
        self._as_parameter_, self._destroy = handle, destroy

    def __del__(self):
        self._destroy(self._as_parameter_)


class Handle:
    """An object of the library, destroyed with its last Python reference or by close(), once calls
    of other threads have returned."""
    _destroy = None

    def __init__(self, handle):
        self._handle = _Owned(handle, type(self)._destroy)

    def close(self):
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __reduce__(self):
        raise TypeError(f"a moert.{type(self).__name__} cannot be pickled or copied: it owns "
                        "memory of this process")
