import os

# Processes are started on uvloop by fork(), and gRPC's handlers of it, which only those need who go
# on in the new process without exec(), may crash or block that one. It reads this when it is first
# imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
