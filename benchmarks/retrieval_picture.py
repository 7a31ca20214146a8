"""Full-evidence hit@k as a picture: what one search sees, and what gold sub-questions see."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.retrieval import CUTS, SUB_QUESTIONS, Figures
from serving.files import replacing

_LABELS = {SUB_QUESTIONS: f"{SUB_QUESTIONS}, k each"}


def draw(figures: Figures, path: Path) -> None:
    """Write a PNG with a panel for each ranking, and a line for each kind of query."""
    rankings = list(next(iter(figures.found.values())))
    figure = Figure(figsize=(3 * len(rankings) + 1, 3.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(rankings), sharey=True, squeeze=False)[0]
    for axes, ranking in zip(panels, rankings, strict=True):
        for query, found in figures.found.items():
            hits = [found[ranking].hit[k] for k in CUTS]
            axes.plot(CUTS, hits, marker="o", label=_LABELS.get(query, query))
        axes.set(title=ranking, xlabel="k", xticks=CUTS, ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("questions with full evidence")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(figures.found))
    figure.suptitle(f"{figures.data}: {figures.questions} questions, {figures.passages} passages")
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")
