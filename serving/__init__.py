import os

# uvloop starts child processes by fork() and exec(). gRPC registers fork handlers, which are only
# needed by programs that continue in the child without exec(), and which may crash or block the
# child. gRPC reads this variable when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
