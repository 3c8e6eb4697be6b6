from threading import local

class NameManager:
    _current: local
