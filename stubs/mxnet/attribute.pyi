from threading import local

class AttrScope:
    _current: local
