"""What each metric means, in Chinese. Names of metrics stay English terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CHINESE_METRICS: Final[Mapping[str, str]] = {
    "ttft": "从发出请求到收到第一段生成文本的时间，文本可以是回答、推理、拒绝或工具调用。"
    "空文本、角色、ping 和用量数据块不算。",
    "ttfa": "到第一段回答文本（不含推理）的时间。只有推理而没有回答时缺失。",
    "tpot": "第一块之后每个输出 token 的平均时间；整段回答一次到达（爆发）时没有此值。",
    "gap": "从第二块起，相邻两个内容块之间的时间。一块可以含有多个 token；与其他块在同一次读取中到达的块不产生间隔。"
    "n 是间隔数，missing 是没有给出间隔的轮次数。",
    "e2e": "到最后一段生成文本的时间；非流式回答则到响应体结束。",
    "closed": "到整个交互结束的时间，包括用量数据块、[DONE] 和响应体的结尾。",
    "ttft_from_due": "从请求应当发出的时刻算起的 TTFT：负载发生器或连接迟到时，用户真正感受到的时间。",
    "e2e_from_due": "从请求应当发出的时刻算起的 E2E。",
    "lateness": "负载发生器开始得有多晚：是它自己的问题，不是服务器的。",
    "upload": "发送请求所用的时间。长文档需要时间。",
    "connect": "域名解析和 TCP 连接的时间，仅统计新建连接的轮次。",
    "tls": "TLS 握手的时间，仅统计进行了握手的轮次。",
    "server_ttft": "引擎自己报告的 TTFT（如果它报告）；与 TTFT 之差是网络和客户端。",
    "time_to_error": "失败的轮次用了多久。失败得快并不会改善任何延迟。",
    "prompt_tokens": "服务器计数的输入长度，包括缓存命中的 token。",
    "output_tokens": "输出长度，包括推理。",
    "cost": "一个轮次按 token 计的费用，单位为计划中的货币。未知的计数用估计值并注明；没有 token 价格的通道没有费用。",
    "asked_rate": "稳态窗口内应当发出的轮次；"
    "不可能发出的（失败会话的其余部分、运行结束、过长的提示、用尽的预算）不计。",
    "sent_rate": "在稳态窗口内写出第一个字节的请求。",
    "finished_rate": "在稳态窗口内结束的成功轮次。",
    "throughput": "在稳态窗口内到达的输出 token，包括未完成的轮次。",
    "goodput": "满足每条单请求限制的轮次。"
    "失败的轮次算违反；被取消的轮次不计，除非已超过限制；无法测量的不计入并另行计数。",
    "goodput_share": "在被判断的轮次中，满足每条单请求限制的比例。",
    "error_share": "在自行结束的轮次中，失败的比例。",
    "cancelled_share": "在可能给出延迟的轮次中，被我们切断的比例。",
    "cache_share": "由前缀缓存提供的提示 token 的比例，仅统计服务器报告了缓存的轮次。未知不是 0。",
    "quality": "受检提示中，回答通过全部检查的比例。失败的轮次没有给出回答，计入错误比例。",
    "collapsed_share": "已崩坏的回答所占比例：以循环结尾、乱码、空白、短于强制长度，"
    "或没有任何 token（这类轮次记为 no_output 失败）。",
    "delivered_share": "实际施加的负载占所要求负载的比例。开环和重放：按时开始的会话到达；闭环：平均存活会话数。",
    "users": "存活的会话数，稳态窗口内的平均值，包括思考时间。",
    "cost_per_million_output_tokens": "稳态中有价格的轮次的费用（包括失败和被切断的），"
    "折算到它们给出的每百万输出 token。"
    "按小时计费时：稳态中 GPU 的费用，折算到其间到达的每百万 token。",
}
"""`METRICS` name -> explanation."""
