from serving.tools.pool import ToolPool, tool_pool

__all__ = ["ToolPool", "tool_pool"]
