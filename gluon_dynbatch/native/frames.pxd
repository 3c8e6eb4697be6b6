"""Frames of Python's stack, the same in every supported version of Python."""

cdef extern from *:
    """
    #include <frameobject.h>

    #if PY_VERSION_HEX < 0x03090000
    static PyCodeObject *PyFrame_GetCode(PyFrameObject *frame)
    {
        Py_INCREF(frame->f_code);
        return frame->f_code;
    }
    static PyFrameObject *PyFrame_GetBack(PyFrameObject *frame)
    {
        Py_XINCREF(frame->f_back);
        return frame->f_back;
    }
    #endif

    #if PY_VERSION_HEX < 0x030A0000
    #define PyFrame_GetLasti(frame) ((frame)->f_lasti)
    #elif PY_VERSION_HEX < 0x030B0000
    #define PyFrame_GetLasti(frame) (2 * (frame)->f_lasti)
    #endif

    static PyObject *next_frame(PyObject *frame)
    {
        PyFrameObject *next;
        if (frame != Py_None)
            next = PyFrame_GetBack((PyFrameObject *)frame);
        else
            Py_XINCREF(next = PyEval_GetFrame());
        return next ? (PyObject *)next : (Py_INCREF(Py_None), Py_None);
    }
    #define frame_code(frame) ((PyObject *)PyFrame_GetCode((PyFrameObject *)(frame)))
    #define frame_instruction(frame) PyFrame_GetLasti((PyFrameObject *)(frame))
    """
    # The frame that called `frame`, for None the innermost one; None after the outermost.
    object next_frame(object frame)
    object frame_code(object frame)
    # What ``frame.f_lasti`` is.
    int frame_instruction(object frame)
