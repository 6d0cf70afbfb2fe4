// Messages in the corner; errors stay until they are dismissed.

import { notices, putAway } from "../notices";
import { ErrorBox } from "../parts/ErrorBox";
import { Icon } from "../parts/Icon";

export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((notice) => (
        <div key={notice.key} class="notice">
          <div>
            {notice.text && <p>{notice.text}</p>}
            {notice.error && <ErrorBox error={notice.error} />}
          </div>
          <button class="quiet" aria-label="Put away" onClick={() => putAway(notice.key)}>
            <Icon name="close" size={12} />
          </button>
        </div>
      ))}
    </div>
  );
}
