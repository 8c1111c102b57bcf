"""Rules that hold in every report: parts sum to wholes, and no number contradicts another.

`gpumemtrace()` of conftest.py applies them to each JSON report of `replay` that a suite reads. A
report with filters has fewer rules: with `--site` and `--top`, lists are not whole.
"""

LEVELS = ("live_bytes", "reserved_bytes", "device_bytes")


def assert_consistent(report):
    broken = broken_rules(report)
    assert not broken, broken[:5]


def broken_rules(report):
    """Returns a sentence for each rule that the report breaks."""
    broken = []

    def expect(rule, holds, *values):
        if not holds:
            broken.append(f"{rule}: {values}")

    if report.get("schema") != "gpumemtrace.report":
        return broken
    is_whole = not {"site", "top"} & set(report.get("filters") or {}) and "omitted" not in report
    devices = {(row["trace"], row["device"]): row for row in report.get("devices", [])}
    for key, device in devices.items():
        check_device(expect, key, device)
    for trace in report["traces"]:
        expect("complete means nothing was lost", trace["complete"] == (not trace["incomplete"]), trace["incomplete"])
        expect("a complete trace drops nothing", not trace["complete"] or trace["losses"]["dropped_events"] == 0, trace["losses"])
    for peak in report.get("peak") or []:
        whole = peak["live_bytes"] if peak["layer"] == "torch" else peak.get("device_bytes", peak["live_bytes"])
        for part in ("sites", "categories") if is_whole else ():
            rows = peak.get(part)
            total = sum(row["bytes"] for row in rows or [])
            expect(f"{part} of a peak sum to it", not rows or total == whole, total, whole)
        device = devices.get((peak["trace"], peak["device"]))
        if device and peak["layer"] == "torch":
            expect("one peak", device["peak"]["live_bytes"] == peak["live_bytes"], device["peak"], peak["live_bytes"])
    for snapshot in report.get("snapshots") or []:
        whole = snapshot["live_bytes"] if snapshot["layer"] == "torch" else snapshot.get("device_bytes", snapshot["live_bytes"])
        total = sum(row["bytes"] for row in snapshot["sites"])
        expect("sites of a snapshot sum to it", not is_whole or total == whole, total, whole)
    for line in report.get("timelines") or []:
        check_timeline(expect, devices.get((line["trace"], line["device"])), line)
    check_fragmentation(expect, report, devices)
    check_leaks(expect, report, devices)
    check_oom(expect, report)
    if is_whole and not report.get("filters"):
        check_verdicts(expect, report)
    return broken


def check_device(expect, key, device):
    peak, end, exit_ = device["peak"], device["end"], device["exit"]
    for level in LEVELS:
        for moment in (end, exit_):
            is_known = peak.get(level) is not None and moment.get(level) is not None
            expect("no moment is above the peak", not is_known or moment[level] <= peak[level], key, level, moment, peak)
    for moment in (end, exit_):
        live, reserved = moment.get("live_bytes"), moment.get("reserved_bytes")
        # On Metal and with a pluggable allocator, blocks need not lie in segments.
        expect("live bytes are reserved", not live or not reserved or live <= reserved, key, moment)
    owned = sum(row["bytes"] for row in device["ledger"])
    expect("owners sum to the driver's peak", not device["ledger"] or owned == peak["device_bytes"], key, owned, peak)
    residual = device.get("residual")
    if residual:
        expect("one residual", device["residual_bytes"] == residual["bytes"], key, residual)
        expect("the residual is among its measurements",
               residual["least_bytes"] <= residual["bytes"] <= residual["most_bytes"], key, residual)


def check_timeline(expect, device, line):
    points = line["points"]
    times = [point["time_ns"] for point in points]
    expect("a timeline goes forward", times == sorted(times))
    for band in line["bands"]:
        expect("a band has a value for each point", len(band["bytes"]) == len(points), band["site"]["line"])
    for index, point in enumerate(points):
        total = sum(band["bytes"][index] for band in line["bands"])
        expect("bands are parts of the live bytes", point["live_bytes"] is None or total <= point["live_bytes"], point, total)
    for level in LEVELS:
        values = [point[level] for point in points if point[level] is not None]
        if device and values and device["peak"].get(level) is not None:
            expect("the timeline reaches the peak, and nothing higher", max(values) == device["peak"][level], level, max(values), device["peak"])


def check_fragmentation(expect, report, devices):
    looks = [(course, look) for course in report.get("fragmentation_over_time") or [] for look in course["points"]]
    moments = [(gap, gap | {"causes": {cause["cause"]: cause["bytes"] for cause in gap["causes"]}})
               for gap in report.get("fragmentation") or []]
    for owner, gap in looks + moments:
        info = report["traces"][owner["trace"]]
        total = sum(gap["causes"].values())
        expect("causes sum to the gap", total == gap["gap_bytes"], total, gap)
        expect("the gap is a part of the reserved bytes", gap["gap_bytes"] <= gap["reserved_bytes"], gap)
        if gap.get("requested_bytes") is not None:
            expect("gap and requested bytes are the reserved bytes",
                   gap["requested_bytes"] + gap["gap_bytes"] == gap["reserved_bytes"], gap)
        if info["torch_tracker"] in ("attached", "own_allocator") and info["complete"]:
            expect("a complete trace leaves no byte unexplained", "unexplained" not in gap["causes"], gap)
        peak = devices.get((owner["trace"], owner["device"]), {"peak": {}})["peak"].get("reserved_bytes")
        expect("no moment reserves more than the peak", peak is None or gap["reserved_bytes"] <= peak, gap, peak)
    for gap, _ in moments:
        for pool in gap.get("pools") or []:
            parts = pool["allocated_bytes"] + pool["pending_bytes"] + pool["free_bytes"]
            expect("a pool is allocated, pending or free", parts == pool["reserved_bytes"], pool)
            expect("free memory has its largest block", pool["largest_free_bytes"] <= pool["free_bytes"], pool)
            expect("what can be released is free", pool["releasable_bytes"] <= pool["free_bytes"], pool)


def check_leaks(expect, report, devices):
    possible = [row["finding"] for one in report.get("leak_assessment") or [] for row in one["growth"] if row.get("finding")]
    steps = (report.get("steps") or {}).get("count")
    for leak in (report.get("leaks") or []) + possible:
        what = (leak["site"]["file"], leak["site"]["line"])
        expect("a finding has bytes", leak["bytes"] > 0, what, leak["bytes"])
        expect("a share is at most 1", (leak["share_of_growth"] or 0) <= 1 and (leak["confidence"] or 0) <= 1, what)
        if leak["last_step"] is not None and len(report["traces"]) == 1:
            expect("a finding lies within the steps", leak["first_step"] <= leak["last_step"] <= steps, what, leak["last_step"], steps)
        forecast = leak["oom_step"]
        if forecast:
            latest = forecast["latest"] if forecast["latest"] is not None else forecast["expected"]
            expect("a forecast has its bounds around it", forecast["earliest"] <= forecast["expected"] <= latest, what, forecast)
            expect("a forecast lies ahead", forecast["earliest"] > leak["last_step"], what, forecast)
        device = devices.get((leak["trace"], leak["device"]))
        if device and leak["kind"] == "tensors" and leak["grows_by"] == "blocks" and device["peak"].get("live_bytes") is not None:
            expect("a leak was live at once", leak["bytes"] <= device["peak"]["live_bytes"], what, leak["bytes"], device["peak"])


def check_oom(expect, report):
    for oom in report.get("oom") or []:
        expect("live bytes are reserved", not oom["reserved_bytes"] or oom["live_bytes"] <= oom["reserved_bytes"], oom["live_bytes"], oom["reserved_bytes"])
        held = sum(site["bytes"] for site in oom["sites"])
        expect("holders sum to the live bytes", "omitted" in oom or held <= oom["live_bytes"], held, oom["live_bytes"])
        unused = sum(cause["bytes"] for cause in oom["unused_causes"])
        expect("unused memory is reserved", unused <= oom["reserved_bytes"], unused, oom["reserved_bytes"])


def check_verdicts(expect, report):
    verdicts = report.get("verdicts")
    if verdicts is None:
        return

    def found(kind):
        return sorted((row["evidence"]["site"]["id"], row["evidence"]["bytes"]) for row in verdicts if row["kind"] == kind)

    if report.get("leaks") is not None:
        leaks = sorted((leak["site"]["id"], leak["bytes"]) for leak in report["leaks"])
        expect("each leak has its verdict", found("leak") == leaks, found("leak"), leaks)
    if report.get("leak_assessment") is not None:
        growth = sorted((row["site"]["id"], row["bytes"]) for one in report["leak_assessment"] for row in one["growth"])
        expect("each growth has its verdict", found("growth") == growth, found("growth"), growth)
    if report.get("oom") is not None:
        expect("an out-of-memory error has its verdict", bool(report["oom"]) == any(row["kind"] == "oom" for row in verdicts))
