# A part of `recording.pyx`: how long a scope is open.

cdef class Statements:
    """The ``with`` statements of an object in a scope; base of `Batch`, which does all the rest.

    Python raises an interrupt between steps of its own, never of native code.  So an object is a
    member of a scope as soon as ``__enter__`` has returned and until ``__exit__`` has begun, and
    what an interrupt leaves half done in between is finished here.
    """

    # The scope that the statements are in, which may be that of another object; and how many.
    cdef readonly object scope
    cdef int depth

    def __enter__(self):
        try:
            scope = self._enter()
        except BaseException:
            settle(self)
            raise
        if not self.depth:
            scope.members.append(PyWeakref_NewRef(self, None))
        self.scope = scope
        self.depth += 1
        return scope

    def __exit__(self, kind, error, trace):
        scope = self.scope
        if self.depth > 1:
            self.depth -= 1
        elif scope is not None:
            try:
                scope._end(self, kind, error)
            finally:
                scope.members.remove(PyWeakref_NewRef(self, None))
                self.scope, self.depth = None, 0
                if not scope.members:
                    settle(scope)


cdef settle(scope):
    """Close a scope that no statement is in; if that is interrupted, again."""
    try:
        scope._settle()
    except BaseException:
        scope._settle()
        raise
