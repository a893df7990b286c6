"""The command zcube."""

import os
import signal
import sys

if "SUDO_UID" in os.environ:  # root must not leave compiled files in the folders of the user who called sudo
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

# Loading the verbs takes a second: Ctrl-C in it ends quietly too. `cli.app.run` takes over from here.
if os.path.basename(sys.argv[0]) in ("zcube", "-m"):
    for _number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_number, lambda *_: os._exit(130))
