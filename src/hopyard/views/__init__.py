"""What people see of a run: each a fold over the journal, and nothing reads a view back.

chart.py   lines → who worked on what, when: spans, lanes, what was idle, hopped, done again
words.py   numbers, durations, configurations and ranks in words
table.py   the one live table
gantt.py   the chart of the run, HTML or PNG
report.py  the final report, and its plain values
"""
