"""The command line: one file per verb, thin; `main.py` is where it starts and `app.py` has every option."""
