"""What people look at: figures from plain arrays, and the page of a report.

May import: everything but the command line and the demo. Only here, in the command line and in the
demo are matplotlib, rich and typer imported, and only when used.
"""
