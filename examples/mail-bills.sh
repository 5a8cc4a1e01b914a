#!/bin/sh
# Mails each tenant's bill of the last month to its owner.
#
# The owner of a tenant is an address in the file OWNERS, one "tenant address" on each line. Needs a sendmail, and a
# gpumeter that may read every line (web.local_readers, or root).
set -eu

OWNERS=${OWNERS:-/etc/gpumeter/owners}
MONTH=${1:-$(date -d "$(date +%Y-%m-01) -1 day" +%Y-%m)}
BILLS=$(mktemp -d)
trap 'rm -rf "$BILLS"' EXIT

# A bill that ends before the month does is not mailed.
gpumeter bill --month "$MONTH" > "$BILLS/all"
if grep '^ends at' "$BILLS/all" >&2; then
    exit 1
fi
gpumeter bill --month "$MONTH" --split-by tenant "$BILLS" > "$BILLS/list"
while IFS="$(printf '\t')" read -r file tenant; do
    owner=$(awk -v tenant="$tenant" '$1 == tenant { print $2 }' "$OWNERS")
    [ -n "$owner" ] || continue
    {
        printf 'To: %s\nSubject: GPU bill of %s, %s\nMIME-Version: 1.0\n' "$owner" "$tenant" "$MONTH"
        printf 'Content-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: base64\n\n'
        base64 "$file"
    } | "${SENDMAIL:-sendmail}" -t
done < "$BILLS/list"
