"""What every store, sink and destination of harvest must do, fakes and real servers alike.

``python -m pytest tests/contract``; ``-k memory`` for the fakes alone.
"""
