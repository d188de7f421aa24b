"""What people see of a run: each view is a fold over the journal, and nothing reads a view back.

timeline.py  lines → who worked on what, when: spans, lanes, what was idle, hopped, done again
words.py     numbers, durations, configurations and ranks as text
live.py      the one live table
gantt.py     the chart of the run, HTML or PNG
plot.py      the pictures of its search, HTML or PNG
report.py    the final report, and its plain values
program.py   a program: its status and its tasks
"""
