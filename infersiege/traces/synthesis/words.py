"""Our own word lists: what synthesised text, questions and tool calls of the built-in workloads are made of."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ENGLISH = _words(
    """
    the of and to in that is was for on with as by at from this which or an be are not but have had were they one
    all their there been if more when will would who so no out up into than them can only other new some could time
    these two may then first any my now such like our over man me even most made after also did many before must
    through years where much your way well down should because each just those people how too little state good very
    make world still own see men work long get here between both life being under never day same another know while
    last might us great old year off come since against go came right used take three water river stone bridge
    market harbour winter summer garden window paper letter number table engine valve meter signal record report
    survey method reason answer question problem result value change level degree pressure current supply demand
    price cost board office council member meeting vote budget growth region county village street station railway
    canal port ship cargo grain timber copper iron steel glass cotton leather factory worker wage union school
    teacher student library museum theatre music painting poem novel editor printer page chapter index volume
    edition archive history century period decade season month week morning evening night storm wind rain snow field
    forest hill valley coast island ocean current north south east west distance height weight length speed energy
    heat light sound colour shape surface layer structure pattern system network circuit memory module packet server
    client request response latency throughput queue buffer cache thread process kernel driver compiler parser
    protocol schema table column row query filter sort merge split branch commit release version update patch test
    review measure compare estimate predict observe describe explain define collect gather deliver carry build
    repair replace remove improve reduce increase maintain control inspect approve reject consider suggest require
    allow prevent protect support provide quiet narrow broad steep shallow heavy bright distant early late recent
    common rare simple complex local global public private annual daily seasonal careful steady sudden gradual
    partial complete separate joint final initial
    """
)

CHINESE = _words(
    """
    我们 他们 这个 那个 时间 问题 工作 生活 城市 农村 河流 桥梁 市场 港口 冬天 夏天 花园 窗户 纸张 信件 数字 表格
    引擎 阀门 仪表 信号 记录 报告 调查 方法 原因 答案 结果 价值 变化 水平 程度 压力 电流 供应 需求 价格 成本 办公室
    委员会 成员 会议 投票 预算 增长 地区 村庄 街道 车站 铁路 运河 船只 货物 粮食 木材 钢铁 玻璃 棉花 工厂 工人 工资
    学校 老师 学生 图书馆 博物馆 剧院 音乐 绘画 诗歌 小说 编辑 章节 索引 版本 档案 历史 世纪 时期 季节 早晨 晚上
    风暴 大雨 田野 森林 山谷 海岸 岛屿 海洋 北方 南方 东部 西部 距离 高度 重量 长度 速度 能量 热量 光线 声音 颜色
    形状 表面 结构 模式 系统 网络 电路 内存 模块 服务器 客户端 请求 响应 延迟 吞吐量 队列 缓冲 缓存 线程 进程 内核
    驱动 编译器 协议 查询 过滤 排序 合并 拆分 分支 提交 发布 更新 测试 评审 测量 比较 估计 预测 观察 描述 解释 定义
    收集 交付 运输 建造 修理 替换 删除 改进 减少 增加 维护 控制 检查 批准 拒绝 考虑 建议 要求 允许 防止 保护 支持
    提供 安静 狭窄 宽阔 陡峭 沉重 明亮 遥远 早期 晚期 最近 常见 罕见 简单 复杂 本地 全球 公共 私人 每年 每天 仔细
    稳定 突然 逐渐 部分 完整 单独 联合 最终 初始 因此 但是 如果 虽然 并且 或者 已经 仍然 正在 可以 应该 必须 需要
    通过 之后 之前 其中 以及 关于 根据 由于 为了 对于 所有 每个 许多 一些 其他 同样 不同 主要 重要 一般 特别 可能
    目前
    """
)

WORDS = {"en": ENGLISH, "zh": CHINESE}

TOPICS = {
    "en": (
        "a prefix cache", "a heat pump", "the tides", "a bicycle gear", "compound interest", "a lock gate on a canal",
        "sourdough bread", "a message queue", "the water cycle", "a circuit breaker", "crop rotation", "a sailing boat",
        "a hash table", "the immune system", "a suspension bridge", "glass making", "a tax return", "noise in a flat",
        "a fair coin", "a rain garden", "a database index", "a train timetable", "a telescope", "a wood stove",
        "solar panels", "a public library", "a load balancer", "the printing press", "a beehive", "a water mill",
    ),
    "zh": (
        "前缀缓存", "热泵", "潮汐", "自行车变速器", "复利", "运河船闸", "酸面包", "消息队列", "水循环",
        "断路器", "轮作", "帆船",
        "哈希表", "免疫系统", "悬索桥", "玻璃制造", "报税", "公寓噪音", "公平硬币", "雨水花园",
        "数据库索引", "列车时刻表", "望远镜",
        "柴火炉", "太阳能板", "公共图书馆", "负载均衡器", "印刷机", "蜂箱", "水磨坊",
    ),
}  # fmt: skip

QUESTIONS = {
    "en": (
        "How does {topic} work, in {number} words or fewer?",
        "What would you check first if {topic} failed after {number} days?",
        "Explain {topic} to a class of {number} pupils.",
        "Is {topic} worth it for a town of {number} people? Give two reasons.",
        "Which {number} things do people get wrong about {topic}?",
        "Write a short note on {topic} for issue {number} of our newsletter.",
        "Compare {topic} today with {topic} {number} years ago.",
        "What does {topic} cost over {number} months, roughly?",
        "Give me a checklist for {topic} that fits on {number} lines.",
        "Who should know about {topic}, and why? My budget is {number}.",
    ),
    "zh": (
        "请用不超过{number}个字说明{topic}的原理。",
        "如果{topic}在{number}天后出了问题，你会先检查什么？",
        "请向{number}名学生解释{topic}。",
        "对一个{number}人的小镇来说，{topic}值得吗？请给出两个理由。",
        "关于{topic}，人们常犯的{number}个错误是什么？",
        "请为第{number}期简报写一段关于{topic}的短文。",
        "请比较今天和{number}年前的{topic}。",
        "{topic}在{number}个月内大约要花多少钱？",
        "请列出一份关于{topic}的清单，不超过{number}行。",
        "谁应该了解{topic}，为什么？我的预算是{number}。",
    ),
}

DOCUMENT_QUESTIONS = {
    "en": (
        "Summarise the document above in {number} sentences.",
        "Which {number} facts in the document matter most?",
        "What does the document say about {topic}? Answer with at most {number} quotations.",
        "List {number} claims of the document that need a source.",
        "Rewrite the opening of the document for a reader of {number} years.",
        "Which part of the document contradicts another one? Name up to {number}.",
        "Draft a reply to the author in {number} lines.",
    ),
    "zh": (
        "请用{number}句话概括上面的文档。",
        "文档中最重要的{number}个事实是什么？",
        "文档对{topic}是怎么说的？最多引用{number}处。",
        "请列出文档中需要注明来源的{number}个论断。",
        "请为{number}岁的读者改写文档的开头。",
        "文档中哪些部分互相矛盾？最多列出{number}处。",
        "请用{number}行给作者写一封回信。",
    ),
}

TOOL_NAMES = (
    "read_file", "list_directory", "search_text", "run_tests", "edit_file", "run_command", "fetch_page", "git_diff",
    "find_symbol", "create_file", "query_database", "read_log", "apply_patch", "open_ticket", "check_types",
    "list_jobs",     "start_job", "read_metric", "send_message", "format_code",
)  # fmt: skip
"""Names of the tools of `builtin:agent`, in the order in which they are offered."""
