# How long a scope is open; a part of `recording.pyx`.

cdef class Statements:
    """The ``with`` statements of an object: base of `Batch`.

    Owned by the user: scopes refer to it weakly, and it to its scope until the last statement ends.

    Interrupts come between steps of Python code, never inside native code.  So an object is a
    member of a scope from the moment when ``__enter__`` returns until ``__exit__`` begins.  If an
    interrupt leaves a scope half opened or half closed, these methods close it.
    """

    #: The `OpenScope` that the statements are in: this object has opened or joined it.
    cdef readonly object scope
    #: The number of statements.
    cdef int depth

    def __enter__(self):
        # Made first: after `_enter`, nothing may run the collector, which could end the scope.
        reference = PyWeakref_NewRef(self, None)
        scope = self._enter()
        is_new = not scope.members
        if not self.depth:
            scope.members.append(reference)
        if is_new:
            try:
                scope.open()
            except BaseException:
                scope.members.remove(reference)
                settle(scope)
                raise
        self.scope = scope
        self.depth += 1
        return scope.batch

    def __exit__(self, kind, error, trace):
        scope = self.scope
        if self.depth > 1:
            self.depth -= 1
        elif scope is not None:
            member = PyWeakref_NewRef(self, None)
            if member not in scope.members:
                # Python's collector cleared the reference before it ended this statement.
                scope.members.insert(0, member)
            try:
                scope.end(self, kind, error)
            finally:
                scope.members.remove(member)
                self.scope, self.depth = None, 0
                if not scope.members:
                    settle(scope)


cdef settle(scope):
    """Close a scope unless it has members; try again if that is interrupted."""
    try:
        scope.settle()
    except BaseException:
        scope.settle()
        raise
