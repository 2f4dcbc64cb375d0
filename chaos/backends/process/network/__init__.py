"""Networks of a run on real processes: plain, through proxies, through a packet switch."""
