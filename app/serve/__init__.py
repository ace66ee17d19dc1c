"""An OpenAI-compatible endpoint in front of the engine, as `vllm serve` has it."""
