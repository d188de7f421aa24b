"""Run directories at URLs. The journal stays on the driver's disk, in a *working folder*, and is copied behind as
numbered *segments*, each created under a free name. Whoever creates the next number has the run.

`segments` knows what a segment is, `working` brings a working folder up to date, `mirror` is the driver's side.
"""
