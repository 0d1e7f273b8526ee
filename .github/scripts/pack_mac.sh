#!/bin/sh
# Pack the run `mac`, for .github/workflows/mac.yml: by `pomology submit`, which checks it as the
# collection would, or by `make share` where that wrote no zip. The job's summary has the verdict.
set -eu
if said=$(.venv/bin/pomology submit mac --yes 2>&1); then
  verdict="The collection would accept this run."
else
  verdict="The collection would not accept this run, for these reasons:"
  set -- outputs/*.zip
  [ -e "$1" ] || make share RUN=mac
fi
printf '%s\n\n%s\n' "$verdict" "$said"
{
  printf '%s\n\n' "$verdict"
  printf '%s\n' "$said" | sed 's/^/    /'
} >>"$GITHUB_STEP_SUMMARY"
