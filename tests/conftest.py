"""What every test has: no keys of the person who runs them, and processes that start quickly."""

import atexit
import gc
import os
import shutil
import sys
import tempfile

# Before any test module is imported: some copy the environment for the processes they start.
_NOBODY = tempfile.mkdtemp(prefix="kvcs-tests-config-")
atexit.register(shutil.rmtree, _NOBODY, ignore_errors=True)
os.environ["XDG_CONFIG_HOME"] = _NOBODY
# Files with keys are refused when others can read them.
os.umask(0o077)
for _name in ("KVCS_KEYS", "KVCS_KEYS_JSON"):
    os.environ.pop(_name, None)
# Where nobody writes bytecode, every process of a test would compile all of kvcs anew.
if sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = f"{_NOBODY}/bytecode"


def pytest_collection_finish():
    """Leave the tests themselves out of garbage collection: they live to the end."""
    gc.collect()
    gc.freeze()
