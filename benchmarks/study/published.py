"""What the paper reports ("Think Big, Search Small", TBSS), in tables of its own: they are never mixed with ours.

Its "average" is over the 3,869 questions, not over the data sets: a micro average.
"""

from benchmarks.study.report_table import Cell, ReportTable

_DATASETS = ("2Wiki judge", "HotpotQA judge", "MuSiQue judge", "PopQA judge", "Bamboogle judge", "EM", "F1", "Judge")
_NOTE = "Published figures, not ours. 3,869 questions, mean@4."

TABLE_1 = ReportTable(
    "published-table-1",
    "Published (TBSS Table 1): from a single agent to main and sub-agent of the same model",
    ("model", "single EM", "single F1", "single judge", "factorized EM", "factorized F1", "factorized judge"),
    (
        ("Qwen3-1.7B", 20.24, 28.38, 32.64, 27.86, 37.54, 41.50),
        ("Qwen3-4B", 21.85, 29.65, 32.04, 27.32, 36.12, 40.41),
        ("Qwen3-8B", 24.32, 31.91, 35.41, 31.71, 41.31, 45.28),
        ("Qwen3-14B", 27.92, 37.51, 41.01, 36.55, 46.37, 51.91),
        ("Qwen3-32B", 31.38, 42.78, 50.71, 36.86, 47.80, 54.65),
        ("DeepSeek-V4-Flash", 37.24, 49.06, 57.89, 41.77, 53.34, 61.21),
    ),
    _NOTE,
)
TABLE_2 = ReportTable(
    "published-table-2",
    "Published (TBSS Table 2): backbones, with Qwen3-1.7B as executor",
    ("backbone", *_DATASETS),
    (
        ("Qwen3-1.7B", 55.57, 52.55, 18.24, 39.85, 39.45, 27.86, 37.54, 41.50),
        ("Qwen3-4B", 57.21, 46.94, 19.03, 36.43, 38.53, 28.04, 36.67, 39.98),
        ("Qwen3-8B", 63.87, 51.82, 20.87, 36.43, 41.28, 29.59, 39.24, 43.46),
        ("Qwen3-14B", 66.06, 58.57, 26.92, 39.12, 44.04, 32.26, 42.51, 47.88),
        ("Qwen3-32B", 69.73, 60.71, 26.52, 38.39, 49.54, 33.94, 44.45, 49.25),
        ("DeepSeek-V4-Flash", 75.38, 70.89, 35.36, 46.70, 54.13, 39.18, 50.72, 57.38),
    ),
    _NOTE,
)
_NAIVE: tuple[Cell, ...] = ("Qwen3-1.7B", 75.38, 70.89, 35.36, 46.70, 54.13, 39.18, 50.72, 57.38)
_TUNED: tuple[Cell, ...] = ("Qwen3-1.7B-SFT", 81.13, 75.60, 41.09, 46.21, 64.80, 41.81, 53.97, 61.69)
_FRONTIER: tuple[Cell, ...] = ("DeepSeek-V4-Flash", 80.73, 75.29, 41.30, 44.74, 63.30, 41.77, 53.34, 61.21)
TABLE_3 = ReportTable(
    "published-table-3",
    "Published (TBSS Table 3): executors, with DeepSeek-V4-Flash as backbone",
    ("executor", *_DATASETS),
    (
        _NAIVE,
        ("Qwen3-4B", 74.17, 72.42, 35.70, 45.72, 49.54, 40.01, 51.03, 57.21),
        ("Qwen3-8B", 74.44, 70.79, 37.35, 45.60, 59.63, 41.04, 51.87, 57.54),
        ("Qwen3-14B", 76.06, 72.35, 37.65, 45.60, 58.72, 40.68, 51.88, 58.39),
        ("Qwen3-32B", 77.60, 72.56, 39.23, 46.94, 56.88, 40.45, 52.12, 59.50),
        _FRONTIER,
        ("Qwen3-8B-SearchR1", 72.09, 68.74, 33.23, 42.18, 55.96, 41.51, 50.89, 54.55),
        _TUNED,
    ),
    _NOTE,
)
TABLE_4 = ReportTable(
    "published-table-4",
    "Published (TBSS Table 4): searches of student and teacher on 3,000 training questions",
    ("executor", "runs", "searches a run", "one search", "one, %", "two or more", "two or more, %"),
    (
        ("Qwen3-1.7B", 6348, 1.002, 6337, 99.83, 11, 0.17),
        ("DeepSeek-V4-Pro", 6189, 1.675, 3694, 59.69, 2495, 40.31),
    ),
    "Published figures, not ours. Backbone: DeepSeek-V4-Flash.",
    digits=3,
)
TABLE_5 = ReportTable(
    "published-table-5",
    "Published (TBSS Table 5): the distilled executor under two backbones",
    ("backbone", "executor", *_DATASETS),
    (
        *(("DeepSeek-V4-Flash", *row) for row in (_NAIVE, _TUNED, _FRONTIER)),
        ("GLM-5.1", "Qwen3-1.7B", 75.96, 72.27, 38.20, 45.97, 56.88, 38.92, 51.20, 58.52),
        ("GLM-5.1", "Qwen3-1.7B-SFT", 81.53, 77.88, 44.13, 46.33, 66.40, 42.54, 55.03, 63.20),
        ("GLM-5.1", "DeepSeek-V4-Flash", 81.33, 78.07, 43.97, 46.09, 67.89, 42.13, 54.39, 63.15),
    ),
    _NOTE,
)
EXECUTOR_TOKENS = ReportTable(
    "published-figure-3",
    "Published (TBSS Fig. 3, as far as the text gives its points): judge against executor tokens",
    ("executor", "executor tokens a question", "Judge"),
    (
        ("Qwen3-1.7B-SFT", 4758, 61.69),
        ("DeepSeek-V4-Flash", 7577, 61.21),
        ("Qwen3-8B-SearchR1", "2.2 times those of Qwen3-1.7B-SFT", 54.55),
    ),
    "Published figures, not ours. Backbone: DeepSeek-V4-Flash.",
)
PUBLISHED = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, EXECUTOR_TOKENS)
