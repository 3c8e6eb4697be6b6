# The user's line of each call; a part of `recording.pyx`.

cdef extern from *:
    """
    #include "frameobject.h"

    /* Python 3.11 has functions for all of a frame, 3.9 for some, 3.8 for nothing. */
    #if PY_VERSION_HEX < 0x03090000
    static PyObject *code_of_frame(void *frame) {
        PyCodeObject *code = ((PyFrameObject *)frame)->f_code;
        Py_INCREF(code);
        return (PyObject *)code;
    }
    #else
    static PyObject *code_of_frame(void *frame) {
        return (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    }
    #endif
    static int instruction_of_frame(void *frame) {
    #if PY_VERSION_HEX >= 0x030B0000
        return PyFrame_GetLasti((PyFrameObject *)frame);
    #elif PY_VERSION_HEX >= 0x030A0000
        int at = ((PyFrameObject *)frame)->f_lasti;
        return at < 0 ? at : at * (int)sizeof(_Py_CODEUNIT);
    #else
        return ((PyFrameObject *)frame)->f_lasti;
    #endif
    }
    """
    #: What ``f_code`` and ``f_lasti`` of a frame return, without looking the attributes up.
    object code_of_frame(void *frame)
    int instruction_of_frame(void *frame) noexcept

@cython.final
cdef class Place:
    """An instruction of the user's program; each instruction has one `Place`.

    Owned by the table of its code object, which is never freed, nor is that code; and by
    `known_places`, where tapes have its number.
    """

    cdef readonly object code
    cdef int32_t number
    cdef object line
    cdef int instruction

    def __init__(self, code, int instruction):
        self.code, self.instruction = code, instruction

    @property
    def where(self):
        """The line as `errors.Where`."""
        if self.line is None:
            number = PyCode_Addr2Line(<PyCodeObject *>self.code, self.instruction)
            # The first instructions of a code object have no line.
            number = number if number > 0 else self.code.co_firstlineno
            self.line = Where(self.code.co_filename, number, self.code.co_name)
        return self.line


#: Places that were found last, by code and instruction.
cdef list found_places = [Place(None, 0)] * 64
#: All places of calls so far, by number.
cdef list known_places = []


cpdef Place user_place():
    """Return the nearest place outside the libraries.

    If there is none, it is the origin of the thread, or else the place in the outermost frame.
    """
    cdef int instruction
    cdef size_t at
    current, fiber, outermost = PyEval_GetFrame(), None, None
    frame = None if current is NULL else <object>current
    while True:
        while frame is not None:
            at_frame = <void *><PyObject *>frame
            code, instruction = code_of_frame(at_frame), instruction_of_frame(at_frame)
            at = (<size_t><PyObject *>code // 64 + instruction) % 64
            place = <Place>found_places[at]
            if place.code is code and place.instruction == instruction:
                return place
            if is_user(code):
                found_places[at] = place = place_of(code, instruction)
                return place
            frame, outermost = frame.f_back, frame
        # The frames of a fiber end where it started; its parent has those below.
        fiber = getcurrent().parent if fiber is None else fiber.parent
        if fiber is None:
            origin = state.origin
            return origin or place_of(outermost.f_code, outermost.f_lasti)
        frame = fiber.gr_frame


cdef Place place_of(object code, object instruction):
    """Return the place of an instruction of a code object that is in `known_code`."""
    places = <dict>(<tuple>known_code[<size_t><PyObject *>code])[2]
    place = places.get(instruction)
    if place is None:
        place = places[instruction] = Place(code, instruction)
        (<Place>place).number = <int32_t>len(known_places)
        known_places.append(place)
    return <Place>place


cpdef bint is_user(object code) except -1:
    """Return whether a code object is the user's."""
    entry = known_code.get(<size_t><PyObject *>code)
    if entry is None:
        name = code.co_filename
        # The functions that MXNet generates are in no file.
        user = not (name.startswith(libraries) or name == "<string>")
        entry = known_code[<size_t><PyObject *>code] = code, user, {}
    return (<tuple>entry)[1]
