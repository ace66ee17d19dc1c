"""Glossary: every term and every panel of the screen, in two or three plain sentences each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """What something is called, and what it is."""

    name: str
    text: str


TERMS = (
    Entry(
        "token",
        "What a model reads and writes: a word or a piece of one. All sizes here are in tokens, because a token is "
        "also what costs time and memory.",
    ),
    Entry(
        "step",
        "One pass of the model over the tokens that the scheduler has chosen, from one request or from many. The "
        "scheduler decides anew before each step; a column of the screen is a step.",
    ),
    Entry(
        "continuous batching",
        "Requests join and leave the running batch at every step. Nobody waits until all others are done, as in a "
        "static batch.",
    ),
    Entry(
        "token budget",
        "The most tokens that one step may compute (max_num_batched_tokens). A large budget finishes prompts sooner; a "
        "small one keeps steps short, so that the others get their next tokens sooner.",
    ),
    Entry(
        "seats",
        "The most requests that may run at once (max_num_seqs). The others wait in the queue, even if there are budget "
        "and memory for them.",
    ),
    Entry(
        "prefill",
        "Computing the tokens of a prompt, many in one step. It fills the KV cache and ends with the first token of "
        "the output.",
    ),
    Entry(
        "decode",
        "Computing one token, the one that the request got last, to get the next. A request decodes in every step "
        "until it ends.",
    ),
    Entry(
        "chunked prefill",
        "A prompt that does not fit into what is left of a step's budget is computed in pieces, a chunk in each step "
        "(enable_chunked_prefill). Without it a long prompt has to wait for a step that can take it whole.",
    ),
    Entry(
        "long_prefill_token_threshold",
        "The most tokens that one request may get in a step while there are others, so that a long prompt leaves some "
        "budget for short ones. 0 is no limit. long_prefill_token_threshold_adaptive raises it to the budget divided "
        "by the number of requests.",
    ),
    Entry(
        "KV cache",
        "What attention has computed for each token (its keys and values), kept so that no token has to be computed "
        "twice. It is what fills the memory of an inference engine.",
    ),
    Entry(
        "KV block",
        "The KV cache is handed out in blocks of block_size tokens. A request takes one more whenever its last one is "
        "full; num_blocks is the size of the pool, of which block 0 (the null block) is never used.",
    ),
    Entry(
        "preemption",
        "A running request needs a KV block, and none is free: the policy names somebody who has to go. That request "
        "loses its blocks, goes back to the queue, and is computed again later; its text so far stays.",
    ),
    Entry(
        "recompute",
        "What a preempted request has to do when it comes back: compute the tokens again that it had computed before. "
        "This work is pure waste, and the price of a preemption.",
    ),
    Entry(
        "prefix cache",
        "Full KV blocks stay known by their content after their request has ended (enable_prefix_caching). A prompt "
        "that begins with the same tokens takes them over instead of computing them: a hit. A chat template begins "
        "every prompt with the same words, so that even unlike prompts may share a block.",
    ),
    Entry(
        "eviction",
        "A cached block that nobody holds is free: it is given to whoever needs one, least recently used first. From "
        "then on its old content cannot be found any more.",
    ),
    Entry(
        "admission",
        "Taking the request at the head of the queue into the running batch. It needs a seat, budget, and memory; if "
        "it lacks one of them it waits, and nobody passes it.",
    ),
    Entry(
        "reserve_full_sequence",
        "If on, a request is admitted only if all the tokens that it has now fit into the pool; if off, it is enough "
        "that the chunk of this step fits. Off, more is admitted, and more is preempted.",
    ),
    Entry(
        "watermark",
        "The share of the pool that must stay free when a request is admitted beside others. It leaves room for those "
        "that run to grow, so that fewer are preempted.",
    ),
    Entry(
        "admit_after_preemption",
        "Normally nobody is admitted in a step that has preempted, since memory is short. With this on somebody is, "
        "and requests can be thrown out and taken in again and again: thrash.",
    ),
    Entry(
        "TTFT",
        "Time to first token: from a request's arrival until its first token is there. Waiting in the queue counts, "
        "and a preemption does not start it anew.",
    ),
    Entry(
        "ITL",
        "Inter-token latency: the time between one token of a request and its next. It grows while a long prompt "
        "shares the steps, and a preemption is one very long gap.",
    ),
    Entry(
        "sent",
        "A request on its way to the engine, which takes in what has come between two steps. Its waiting counts from "
        "the moment in which the engine's process got it.",
    ),
    Entry(
        "queue time and end to end",
        "Queue time goes from the arrival to the first step that computes something for the request. End to end goes "
        "from the arrival to the last token.",
    ),
    Entry(
        "p50, p95, p99",
        "Percentiles: of a hundred values, 50, 95 or 99 are at most this large. p50 is what is usual; p99 is what one "
        "in a hundred is worse than.",
    ),
    Entry(
        "waste",
        "Tokens that were computed twice because of preemptions, and budget that a step did not use. Tokens that the "
        "prefix cache saved are the opposite.",
    ),
    Entry(
        "max_tokens and max_model_len",
        "max_tokens is the most output that a request asks for, max_model_len the most tokens of prompt and output "
        "together. A request that reaches either ends for the reason length; stop means that the model itself ended.",
    ),
    Entry(
        "load",
        "Requests that arrive by themselves at random times, so many a second on average (Poisson arrivals). Some of "
        "them are long.",
    ),
    Entry(
        "poll",
        "A server elsewhere is asked for its metrics again and again: a column is one such look, and stands for all of "
        "the engine's iterations since the one before. Panels say what is exact, what is known per poll, and what is "
        "not available from this server.",
    ),
    Entry(
        "mine",
        "Of a server's requests only those that are sent from here are known one by one, and have rows; what is said "
        "of them was measured at this end. Of all others a server tells numbers only.",
    ),
    Entry(
        "tokens per iteration",
        "What one step of a server's engine computed, in the mean of all steps between two polls: outputs below, "
        "prompts above them. The dotted line is the budget, if the server tells it.",
    ),
    Entry(
        "all, and mine",
        "Latencies of all requests of a server since we look at it, as far as the bounds tell in which it counts them: "
        ">2.0 is above the last one. Those of mine are exact.",
    ),
    Entry(
        "KV events",
        "What vLLM can publish about its prefix cache: full blocks that enter and leave it, and which block each "
        "follows. That gives a tree of texts: blocks that fork are shared by several. It tells no place in memory, and "
        "nothing of blocks that are not full.",
    ),
    Entry(
        "bitwise",
        "What a request gets does not depend on who shared its steps: the numbers that the model computes for it are, "
        "bit for bit, those that it gets alone. Where that cannot be had, the header says best effort.",
    ),
    Entry(
        "policy",
        "The rules by which the scheduler goes: who is served first, who is admitted, and who has to go when memory "
        "runs out. Those of several systems are built in; the model and the cache stay the same.",
    ),
    Entry(
        "fcfs",
        "vLLM's default: first come, first served. Whoever runs is served first, then the queue; the one that was "
        "admitted last has to go.",
    ),
    Entry(
        "priority",
        "vLLM's other policy: the queue goes by priority, the smallest number first, and the least urgent request has "
        "to go. Requests that are not urgent can starve while urgent ones keep coming.",
    ),
    Entry(
        "priority ageing",
        "With priority_aging above 0 a request gains so much urgency with each step since it arrived. So it comes to "
        "its turn at last, however many urgent ones arrive after it.",
    ),
    Entry(
        "sglang",
        "SGLang's rules: prefills go first and decodes wait meanwhile. A request is admitted if it fits beside what "
        "the running ones are expected to need still; where that was too hopeful, the one with the fewest output "
        "tokens has to go.",
    ),
    Entry(
        "sglang_lpm",
        "sglang, but whoever finds the longest prefix in the cache is next (longest prefix match). Good for the cache; "
        "requests that find nothing may starve.",
    ),
    Entry(
        "new_token_ratio",
        "Of sglang: which share of the output that they may still write the running requests are expected to write. It "
        "falls with every decode step that goes well, down to a floor within new_token_ratio_decay_steps, and jumps up "
        "when somebody had to go. schedule_conservativeness above 1 makes it more careful.",
    ),
    Entry(
        "mixed_chunk",
        "Of sglang: decodes may join a step of prefills, so that they need not wait for it. It is what chunked prefill "
        "is in vLLM.",
    ),
    Entry(
        "static",
        "Static batching, as FasterTransformer did it: a batch is formed, and nobody joins until its last request has "
        "ended. Memory is reserved for all that they may become, so nobody is ever thrown out.",
    ),
    Entry(
        "orca",
        "Orca's rules: requests join and leave at every step, and prompts are computed whole. Each reserves memory for "
        "the most that it can become; what it does not use of it is wasted.",
    ),
    Entry(
        "prefill_first",
        "The first vLLM's rules: a step is prefills if there are any, else decodes. New requests start soon; those "
        "that run stand still meanwhile.",
    ),
    Entry(
        "sarathi",
        "Sarathi-Serve's rules, for which chunked prefill was invented: decodes first, then prefills in chunks, in "
        "what is left of the budget. So no prompt ever holds up those that decode.",
    ),
)

PANELS = {
    "header": Entry(
        "Header",
        "The model and how it runs; the step; steps and output tokens a second; seats taken, requests waiting, "
        "preemptions so far; how full the KV cache is. In the past it says how many steps back.",
    ),
    "banner": Entry(
        "Banner",
        "What the model still needs until it can run, why the engine has ended, or why a server does not answer.",
    ),
    "narration": Entry(
        "Narration",
        "While a preset is played, its title, its scenes with the digits that play them from their start, and what is "
        "to be watched now. What is said stands in the steps: it is there again when one goes back, and in recordings.",
    ),
    "budget": Entry(
        "Token budget",
        "A column is a step, the newest at the right; its height is the tokens computed in it, the dotted line the "
        "most that it may compute. From the bottom: decodes (green), prompts (blue), work done twice (orange), and "
        "hatched what the prefix cache saved; without colours each has its own sign. ▼ below: somebody was preempted.",
    ),
    "requests": Entry(
        "Requests",
        "A row is a request: its letter, its progress (12/60 output tokens; during a prefill computed of needed "
        "tokens), its KV blocks (▦), its preemptions (×2), and its life in the columns of the token budget. Rows stand "
        "in the scheduler's order: running, a line that says what the next one waits for, waiting, ended.",
    ),
    "step": Entry(
        "Step",
        "One decision of the scheduler. The bar is the budget: a letter for each request that got a share, dots for "
        "what stayed unused. Below, in words: who was preempted for whom, who got how much and why not more, who waits "
        "for what; and at the end where the time went.",
    ),
    "blocks": Entry(
        "KV blocks",
        "The memory: every block with the letter of who holds it, how full it is, how many share it (2), and whether "
        "it has just lost its cached content (~). ░ is free, but its content is still known. When nothing is free any "
        "more, somebody is preempted.",
    ),
    "events": Entry(
        "Events",
        "What has happened, the newest at the bottom: × preempted, ↺ back after that, ▸ first token, ✓ done, "
        "■ aborted, ± a parameter was changed. The number is the step; a click on a line goes there.",
    ),
    "output": Entry(
        "Output",
        "The text of the selected request, the piece of this step marked; above it the beginning of its prompt. The "
        "model's words are drawn as they are.",
    ),
    "latency": Entry(
        "Latency",
        "How long people wait: until the first token (TTFT) and between two tokens (ITL), for short and long prompts "
        "apart. While a long prompt is being computed the gaps of all others grow, the more the larger the budget is.",
    ),
    "waste": Entry(
        "Waste",
        "What the work so far was worth: tokens computed, those of them that preemptions made necessary a second time, "
        "those that the prefix cache saved, and budget that was not used, with what left it unused.",
    ),
    "request": Entry(
        "Request",
        "All that is known of one request, as of the step that is shown: its life as a bar of steps; how long it "
        "waited and what for; its latencies; the tokens that it needs against those that were computed for it; its KV "
        "blocks in the order of its text; and its text, with what this step computed marked.",
    ),
    "parameters": Entry(
        "Parameters",
        "All that can be changed while the engine runs, and what takes a restart. A change holds from the next step "
        "on: an arrow stands between the value at the start and the one now. What is dim the policy in force ignores.",
    ),
    "timeline": Entry(
        "History",
        "All steps that are kept, the newest at the right; a column is several of them if there are many. The height "
        "is the most tokens of any; ▼ is a preemption, ± a change of parameters, the marked column is the step that is "
        "shown. A click goes there.",
    ),
}
"""By the id of the widget."""


def term(name: str) -> Entry | None:
    """The term of that name; a policy that somebody wrote is none."""
    return next((entry for entry in TERMS if entry.name == name), None)
