"""A stand-in of the metrics of model servers: it serves no model and counts by a clock that it is given.

Names and labels are those of vLLM and SGLang, which `engines.py` looks up in their source.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ModelServer:
    """Counts so many tokens and requests for each second of a clock."""

    def __init__(self, suite, engine, model, seconds, output, requests=1.0, running=4, host="127.0.0.1"):
        write = {"vllm": self._vllm, "sglang": self._sglang}[engine]
        self.model, self.seconds, self.output, self.requests, self.running = model, seconds, output, requests, running

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = write().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.target = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        suite.end_first(self._server.shutdown)

    def tokens(self):
        """Output tokens so far."""
        return int(self.output * self.seconds())

    def _vllm(self):
        labels = f'model_name="{self.model}",engine="0"'
        return "\n".join([
            "# TYPE vllm:generation_tokens_total counter", f"vllm:generation_tokens_total{{{labels}}} {self.tokens()}",
            "# TYPE vllm:prompt_tokens_total counter", f"vllm:prompt_tokens_total{{{labels}}} {3 * self.tokens()}",
            "# TYPE vllm:request_success_total counter",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {int(self.requests * self.seconds())}',
            "# TYPE vllm:num_requests_running gauge", f"vllm:num_requests_running{{{labels}}} {self.running}",
            "# TYPE vllm:num_requests_waiting gauge", f"vllm:num_requests_waiting{{{labels}}} 0", ""])

    def _sglang(self):
        labels = f'model_name="{self.model}",engine_type="unified"'
        # With --enable-metrics-for-all-schedulers each rank reports what they do together.
        ranks = [f'{labels},tp_rank="{rank}",pp_rank="0",moe_ep_rank="0"' for rank in range(2)]
        streaming = f'{labels},is_streaming="True"'
        return "\n".join([
            "# TYPE sglang:generation_tokens_total counter", f"sglang:generation_tokens_total{{{streaming}}} {self.tokens()}",
            "# TYPE sglang:prompt_tokens_total counter", f"sglang:prompt_tokens_total{{{streaming}}} {3 * self.tokens()}",
            "# TYPE sglang:num_requests_total counter", f"sglang:num_requests_total{{{streaming}}} {int(self.requests * self.seconds())}",
            "# TYPE sglang:num_running_reqs gauge", *(f"sglang:num_running_reqs{{{rank}}} {self.running}" for rank in ranks),
            "# TYPE sglang:num_queue_reqs gauge", *(f"sglang:num_queue_reqs{{{rank}}} 0" for rank in ranks), ""])
