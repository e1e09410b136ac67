import os

# Names are looked for on this machine only: the Hub would be asked again and again where there is no network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
