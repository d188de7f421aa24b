"""How the members of a gang exchange gradients and parameters while they train one model (`ports.training.Exchange`).

`board` is where they find each other, over the run's own wire; `group` their process group (torch.distributed, for
every framework), `blocks` and `peers` its averages over sockets, `gpus` its part on GPUs; `buffers` how arrays lie in
flat memory, and its average; `compression` smaller numbers; `exchange` what a Trainable is given. Nothing here knows
recipes, units, or why the members train.
"""
