"""Answers questions of gpumemtrace.sql, in the environment that has the engines.

Reads one request per line: JSON with the arguments of `sql.query()`. Writes a line for each:
{"rows": [...]}, or {"error": message, "code": exit code}. Engines run in this one process, so that
Spark starts once.
"""

import json
import sys

from gpumemtrace import sql


def main():
    # Engines may print; the answers keep stdout for themselves.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"rows": sql.query(request["archive"], request["name"], request["engine"], **request["parameters"])}
        except sql.QueryError as error:
            answer = {"error": str(error), "code": error.code}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
