"""The command zcube."""

import os
import sys

if "SUDO_UID" in os.environ:  # root must not leave compiled files in the folders of the user who called sudo
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
