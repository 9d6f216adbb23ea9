"""Every matplotlib figure, from plain arrays: nothing here knows of benchmarks or trains anything.

matplotlib is an extra and is imported when a figure is begun (``canvas.panels``), nowhere else. Each figure is written
as PNG and as SVG, whole or not at all; the same arrays give the same files.

    recall      recall of an attack's most exposed records among a score's, over the share kept
    scatter     two positive values of each record, coloured by a third
    reliability predicted against measured rates
    budget      what a number of shadow models finds, with the exposure and without
    images      rows of images with a caption each
    tradeoffs   the theory's expected gap and trade-off curves
    palette     the colour, dash and marker of each score
"""

__all__: list[str] = []
